"""Training on data that may be poisoned, at the price of training.

    losses = criterion(model(x), y)                                # reduction="none": one loss per example
    verdict = randeigen.torch.backward(losses, model, eps=0.05)    # fills .grad with the robust average
    optimizer.step()

Import it before the model is called: from then on layers note what they were given, on the graph.
"""

from randeigen.errors import MissingExtra

try:
    from torch.nn import RMSNorm  # noqa: F401  (came with torch 2.4)
except ImportError:
    raise MissingExtra("randeigen.torch needs torch 2.4 or newer: pip install 'randeigen[torch]'") from None

from randeigen.torch.factors import Lookup, Product
from randeigen.torch.judge import BatchVerdict, Group
from randeigen.torch.layers import layer
from randeigen.torch.measure import table
from randeigen.torch.record import install
from randeigen.torch.step import backward
from randeigen.torch.suspects import Suspect, Suspects

install()

__all__ = ["BatchVerdict", "Group", "Lookup", "Product", "Suspect", "Suspects", "backward", "layer", "table"]
