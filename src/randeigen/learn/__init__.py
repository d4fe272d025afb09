"""The laboratory: federations that train under attack. Needs torch, which `import randeigen` never loads."""

from randeigen.errors import MissingExtra

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingExtra("randeigen.learn needs torch: pip install 'randeigen[experiments]'") from None

from randeigen.learn.federated import Laboratory, Look, run
from randeigen.learn.records import Moment, Record, Spec
from randeigen.learn.servers import SERVERS, Adam, Sgd
from randeigen.learn.tasks import TASKS, Task

__all__ = ["SERVERS", "TASKS", "Adam", "Laboratory", "Look", "Moment", "Record", "Sgd", "Spec", "Task", "run"]
