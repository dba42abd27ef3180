"""Checks of data sets and models: a few samples, and the logits of a few images."""

from __future__ import annotations

from functools import cached_property

from leakbench.contract.check import Case, Checks, NotAsked
from leakbench.data.base import Dataset, ImageDataset, Samples
from leakbench.lazy import torch
from leakbench.models.base import Model, Network, build_network
from leakbench.models.bert import TextModel

ROWS = [3, 0, 2]
CLASSES = 7


class DatasetCase(Case[Dataset]):
    """The first samples of a data set."""

    @cached_property
    def samples(self) -> Samples:
        """Some rows of the train split."""
        return self.made.load("train", ROWS)


data_checks: Checks[DatasetCase] = Checks()


@data_checks("splits")
def splits(case: DatasetCase) -> str | None:
    """A train and a test split, each with samples."""
    for split in ("train", "test"):
        length = case.made.length(split)
        if not isinstance(length, int) or length < 1:
            return f"length('{split}') is {length!r}; there is at least one sample in 'train' and in 'test'"
    return None


@data_checks("samples")
def samples(case: DatasetCase) -> str | None:
    """Shapes and types of samples."""
    values, labels = case.samples
    expected = (len(ROWS), *case.made.shape)
    kind = torch.float32 if isinstance(case.made, ImageDataset) else torch.int64
    if tuple(values.shape) != expected or values.dtype != kind:
        return f"values are {list(values.shape)} {values.dtype}; they are {list(expected)} {kind}"
    if tuple(labels.shape) != (len(ROWS),) or labels.dtype != torch.int64:
        return f"labels are {list(labels.shape)} {labels.dtype}; they are [{len(ROWS)}] torch.int64"
    return None


@data_checks("range")
def in_range(case: DatasetCase) -> str | None:
    """Pixels in [0, 1]; labels below the number of classes."""
    values, labels = case.samples
    if isinstance(case.made, ImageDataset) and not bool(((values >= 0) & (values <= 1)).all()):
        return f"pixels run from {float(values.min()):g} to {float(values.max()):g}; they lie in [0, 1]: divide by 255?"
    if not bool(((labels >= 0) & (labels < case.made.classes)).all()):
        last = case.made.classes - 1
        return f"labels run from {int(labels.min())} to {int(labels.max())}; they lie in 0 to {last}, as classes says"
    return None


@data_checks("order")
def order(case: DatasetCase) -> str | None:
    """A sample is the same whatever is read beside it, and whenever."""
    for place, row in enumerate(ROWS):
        alone = case.made.load("train", [row])
        if (
            not torch.equal(alone.values[0], case.samples.values[place])
            or alone.labels[0] != case.samples.labels[place]
        ):
            return f"sample {row} alone is another than among {ROWS}; return samples in the order of the rows asked for"
    return None


@data_checks("normalisation")
def normalisation(case: DatasetCase) -> str | None:
    """denormalise takes back what normalise does."""
    values = case.samples.values
    back = case.made.denormalise(case.made.normalise(values))
    if not torch.allclose(back.to(torch.float64), values.to(torch.float64), atol=1e-5):
        return "denormalise(normalise(values)) is not values; give mean and std one number per channel"
    return None


class ModelCase(Case[Model]):
    """A model for images of 32 x 32, initialised twice."""

    @cached_property
    def network(self) -> Network:
        """The network that all checks share."""
        return self.fresh()

    def fresh(self) -> Network:
        """A network initialised from the same seed, every time."""
        if self.text:
            raise NotAsked("it reads text; the check has images")
        return build_network(self.made, self.shape, CLASSES, seed=0)

    @property
    def text(self) -> bool:
        """Whether it reads sentences."""
        return issubclass(self.component, TextModel)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image, ``(C, H, W)``."""
        return 3, 32, 32

    @cached_property
    def images(self) -> torch.Tensor:
        """A batch of network inputs, ``[4, C, H, W]``."""
        return torch.linspace(-1, 1, 4 * 3 * 32 * 32).sin().view(4, *self.shape)


model_checks: Checks[ModelCase] = Checks()


@model_checks("logits")
def logits(case: ModelCase) -> str | None:
    """One row per image, one column per class."""
    network = case.network
    shape = list(network.logits(network.parameters, case.images).shape)
    if shape != [4, CLASSES]:
        return f"4 images of {CLASSES} classes give {shape}; build(shape, classes) returns logits [B, classes]"
    return None


@model_checks("initialisation")
def initialisation(case: ModelCase) -> str | None:
    """It draws from torch's global generator, which the caller seeds."""
    if not torch.equal(case.fresh().parameters, case.network.parameters):
        return "the same seed initialises another model; draw from torch's global generator alone"
    return None


@model_checks("differentiable")
def differentiable(case: ModelCase) -> str | None:
    """Attacks differentiate gradients: no step of the model may be cut off."""
    network = case.network
    images = case.images.clone().requires_grad_(True)
    gradient = network.gradient(network.parameters, images, torch.arange(4))
    if gradient.grad_fn is None:
        return "the gradient does not depend on the images; leave detach() and no_grad() out of forward"
    (slope,) = torch.autograd.grad(gradient.square().sum(), images, allow_unused=True)
    if slope is None or not bool(slope.isfinite().all()):
        return "the gradient has no finite derivative by the images; leave detach() and no_grad() out of forward"
    return None


@model_checks("samples apart")
def samples_apart(case: ModelCase) -> str | None:
    """In evaluation an image's logits do not depend on the rest of its batch."""
    network = case.network
    together = network.logits(network.parameters, case.images)
    alone = network.logits(network.parameters, case.images[:1])
    if not torch.allclose(together[:1], alone, atol=1e-4 * float(together.abs().max())):
        return "an image's logits depend on the rest of its batch; normalise with running statistics in evaluation"
    return None
