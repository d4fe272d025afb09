"""Training on data that may be poisoned, at the price of training.

    losses = criterion(model(x), y)                                # reduction="none": one loss per example
    verdict = randeigen.torch.backward(losses, model, eps=0.05)    # fills .grad with the robust average
    optimizer.step()

Import it before the model is called: from then on the inputs of layers are recorded on the autograd graph,
and freed with it. `uninstall()` ends that, `install()` begins it again.
"""

from randeigen.errors import MissingExtra

try:
    from torch.nn import RMSNorm  # noqa: F401  (came with torch 2.4)
except ImportError:
    raise MissingExtra("randeigen.torch needs torch 2.4 or newer: pip install 'randeigen[torch]'") from None
from randeigen.torch.backward import backward
from randeigen.torch.batchnorm import FrozenBatchNorm, GhostBatchNorm, convert_batchnorm
from randeigen.torch.forward_hooks import install, uninstall
from randeigen.torch.gradients.factors import EmbeddingRows, OuterProduct
from randeigen.torch.gram import gram
from randeigen.torch.group_verdict import BatchVerdict, Group
from randeigen.torch.layers import layer
from randeigen.torch.suspects import Suspect, Suspects

install()

table = gram  # the name until 0.1
Product, Lookup = OuterProduct, EmbeddingRows  # likewise

__all__ = [
    "BatchVerdict",
    "EmbeddingRows",
    "FrozenBatchNorm",
    "GhostBatchNorm",
    "Group",
    "Lookup",
    "OuterProduct",
    "Product",
    "Suspect",
    "Suspects",
    "backward",
    "convert_batchnorm",
    "gram",
    "install",
    "layer",
    "table",
    "uninstall",
]
