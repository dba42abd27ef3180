"""Real images that ship inside dependencies: no download, no staging."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from leakbench.data.base import DATASETS, ImageDataset, Samples, Split, side
from leakbench.errors import MissingData
from leakbench.lazy import np, torch


def _shipped(package: str, file: str) -> Path:
    """A data file inside an installed package, found without importing the package, which would take seconds.

    Raises:
        MissingData: the installed package does not hold the file.
    """
    spec = find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        if (path := Path(folder, file)).is_file():
            return path
    raise MissingData(f"embedded data: '{package}' holds no {file}; install the pinned versions of the dependencies")


@cache
def _scans() -> tuple[torch.Tensor, torch.Tensor]:
    """scikit-learn's digits: float32 ``[1797, 1, 8, 8]`` in [0, 1], and labels, int64 ``[1797]``."""
    table = np.loadtxt(_shipped("sklearn", "datasets/data/digits.csv.gz"), delimiter=",", dtype=np.int64)
    scans, labels = torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, -1])
    return (scans / 16).view(-1, 1, 8, 8), labels.clone()


@DATASETS.register("digits", version=1)
class Digits(ImageDataset):
    """Handwritten digits: the 1,797 scans of scikit-learn, 8x8 with 17 grey levels, resized bilinearly.

    The first 1,297 scans, in scikit-learn's order, are the train split and the last 500 are the test split.
    """

    channels = 1
    classes = 10
    mean = (0.3059,)
    std = (0.3240,)

    size: int = side(28)

    def length(self, split: Split) -> int:
        return {"train": 1297, "test": 500}[split]

    def read(self, split: Split, rows: list[int]) -> Samples:
        scans, labels = _scans()
        first = 0 if split == "train" else self.length("train")
        chosen = torch.tensor(rows, dtype=torch.int64) + first
        if not rows:
            return Samples(torch.empty(0, *self.shape), labels[chosen])
        images = torch.nn.functional.interpolate(scans[chosen], (self.size, self.size), mode="bilinear")
        return Samples(images, labels[chosen])


class Box(NamedTuple):
    """A rectangle of a photograph: pixels ``left <= x < right`` and ``top <= y < bottom``."""

    left: int
    top: int
    right: int
    bottom: int


class Photograph(NamedTuple):
    """A photograph inside a package, and the disjoint regions from which crops are cut.

    Args:
        window: side of a crop before it is resized, in pixels of the photograph.
    """

    package: str
    file: str
    window: int
    train: Box
    test: Box


# Index = class. The regions leave out empty sky and black borders, and each holds a part of the subject; the window is
# 3.5 to 11 times the default size, so that a crop shows an eye or a wheel and not a flat patch.
PHOTOGRAPHS = (
    Photograph("sklearn", "datasets/images/china.jpg", 144, train=Box(220, 90, 640, 427), test=Box(0, 60, 220, 427)),
    Photograph("sklearn", "datasets/images/flower.jpg", 144, train=Box(130, 50, 370, 427), test=Box(370, 50, 560, 427)),
    Photograph("skimage", "data/astronaut.png", 144, train=Box(170, 0, 512, 512), test=Box(0, 0, 170, 512)),
    Photograph("skimage", "data/chelsea.png", 112, train=Box(215, 0, 430, 300), test=Box(40, 0, 215, 300)),
    Photograph("skimage", "data/coffee.png", 128, train=Box(60, 10, 340, 400), test=Box(340, 10, 560, 400)),
    Photograph("skimage", "data/rocket.jpg", 128, train=Box(20, 150, 420, 427), test=Box(420, 150, 640, 427)),
    Photograph("skimage", "data/hubble_deep_field.jpg", 112, train=Box(0, 0, 700, 872), test=Box(700, 0, 1000, 872)),
    Photograph("skimage", "data/ihc.png", 112, train=Box(0, 0, 512, 330), test=Box(0, 330, 512, 512)),
    Photograph("skimage", "data/retina.jpg", 360, train=Box(180, 260, 800, 1150), test=Box(800, 260, 1260, 1150)),
    Photograph("skimage", "data/motorcycle_left.png", 160, train=Box(80, 60, 500, 480), test=Box(500, 60, 740, 480)),
)


@cache
def _photograph(package: str, file: str) -> np.ndarray:
    """Pixels, uint8 ``[H, W, 3]``."""
    from PIL import Image

    with Image.open(_shipped(package, file)) as image:
        return np.asarray(image.convert("RGB"))


# Each region is cut into a square grid of overlapping crops, 2**bits a side.
_GRID_BITS = {"train": 4, "test": 3}


def _spread(position: int, bits: int) -> tuple[int, int]:
    """Row and column of a grid of ``2**bits`` a side, in an order whose every prefix is spread over the grid.

    The first 4 positions lie one in each quadrant, the first 16 one in each quadrant of a quadrant, and so on.
    """
    row = column = 0
    for _ in range(bits):
        low, high = position & 1, position >> 1 & 1
        row, column = 2 * row + (low ^ high), 2 * column + low
        position >>= 2
    return row, column


@DATASETS.register("photos", version=1)
class Photos(ImageDataset):
    """RGB crops of the ten photographs inside scikit-learn and scikit-image; class = photograph.

    Train and test crops come from regions that share no pixel. Each crop is cut first and resized then, so resizing
    does not mix the regions either. Crops of one split do overlap. Index ``i`` shows photograph ``i % 10``, and the
    crops of one photograph jump about its region, so that a run of indices is a varied batch.
    """

    channels = 3
    classes = len(PHOTOGRAPHS)
    mean = (0.5337, 0.3891, 0.3323)
    std = (0.2974, 0.2402, 0.2450)

    size: int = side(32)

    def length(self, split: Split) -> int:
        return self.classes << 2 * _GRID_BITS[split]

    @classmethod
    def crop(cls, split: Split, index: int) -> Box:
        """The box of crop ``index``, in pixels of photograph ``index % 10``."""
        position, label = divmod(index, cls.classes)
        window = PHOTOGRAPHS[label].window
        region = PHOTOGRAPHS[label].train if split == "train" else PHOTOGRAPHS[label].test
        row, column = _spread(position, _GRID_BITS[split])
        last = 2 ** _GRID_BITS[split] - 1
        left = region.left + (region.right - region.left - window) * column // last
        top = region.top + (region.bottom - region.top - window) * row // last
        return Box(left, top, left + window, top + window)

    def read(self, split: Split, rows: list[int]) -> Samples:
        from PIL import Image

        pixels = np.empty((len(rows), self.size, self.size, 3), dtype=np.uint8)
        labels = [row % self.classes for row in rows]
        for position, (row, label) in enumerate(zip(rows, labels, strict=True)):
            box = self.crop(split, row)
            photograph = _photograph(PHOTOGRAPHS[label].package, PHOTOGRAPHS[label].file)
            image = Image.fromarray(photograph[box.top : box.bottom, box.left : box.right])
            pixels[position] = np.asarray(image.resize((self.size, self.size), Image.Resampling.BILINEAR))
        return Samples.from_pixels(pixels, labels)
