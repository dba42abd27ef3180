"""Figures S2 and S3: the total variation that noise causes, and the budgets of leakage that can be met."""

from __future__ import annotations

from leakbench.lazy import np, pd, torch
from leakbench.papers.tfl_meta import PAPER
from leakbench.papers.tfl_meta.common import SIZE, figure
from leakbench.randomness import generator
from leakbench.report.artifacts import Tables
from leakbench.report.plots import Drawing
from leakbench.report.style import MODEL_COLOURS, REFERENCE_COLOUR, panels, use_style
from leakbench.theory.distortion import noise_steepness, noise_tv, noise_tv_lower, noise_tv_upper
from leakbench.theory.leakage_surrogate import LARGEST_LEAKAGE
from leakbench.theory.protection_parameters import required_tv

SPREAD = 1.5
"""Standard deviation of ln sigma_i where coordinates differ."""
PLACES = 61
UPPER, LOWER = "3/2 min(1, sigma_eps^2 A)", "1/100 min(1, sigma_eps^2 A)"


def laws() -> dict[str, torch.Tensor]:
    """Standard deviations of coordinates, by the name of their series."""
    unequal = SPREAD * torch.randn(SIZE, generator=generator(PAPER, "unequal coordinates"), dtype=torch.float64)
    return {
        "1 coordinate": torch.ones(1, dtype=torch.float64),
        f"{SIZE:,} equal ones": torch.ones(SIZE, dtype=torch.float64),
        f"{SIZE:,} unequal ones": unequal.exp(),
    }


@figure(
    "S2",
    title="Total variation that Gaussian noise causes",
    caption="Exact total variation between an upload with normal coordinates before and after noise (lines), and the "
    "two bounds of the literature, 1/100 and 3/2 of min(1, sigma_eps^2 A) with A = sqrt(sum sigma_i^-4) (grey). The "
    "paper takes the lower one for the total variation (eq. 9), which stops at 1/100 where the exact one goes to 1. "
    f"Unequal coordinates: ln sigma_i is normal with standard deviation {SPREAD:g}; the smallest dominate A.",
    experiments=(),
)
def fig_s2(_: Tables) -> Drawing:
    """A line per law of the upload, between two bounds."""
    frame = noise_variations()
    drawn, (ax,) = panels(1, width=6.4, height=3.8)
    reach = frame["sigma_eps^2 A"].to_numpy()
    for bound, pattern in ((UPPER, "--"), (LOWER, ":")):
        label = bound.replace("sigma_eps^2 A", r"$\sigma_\epsilon^2 A$")
        ax.plot(reach, frame[bound], color=REFERENCE_COLOUR, linestyle=pattern, label=label)
    for name, tint, style in zip(laws(), MODEL_COLOURS, ("-", "-", (0, (4, 4))), strict=False):
        ax.plot(reach, frame[name], color=tint, linestyle=style, label=f"exact, {name}")
    ax.set(xlabel=r"$\sigma_\epsilon^2 A$", ylabel="total variation", xscale="log", yscale="log", ylim=(5e-6, 2))
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return Drawing(drawn, frame)


def noise_variations() -> pd.DataFrame:
    """Columns ``sigma_eps^2 A``, both bounds, and a column per law."""
    reach = torch.logspace(-3, 3, PLACES, dtype=torch.float64)
    columns = {"sigma_eps^2 A": reach, UPPER: noise_tv_upper(reach, 1.0), LOWER: noise_tv_lower(reach, 1.0)}
    for name, sigma in laws().items():
        columns[name] = noise_tv(reach / noise_steepness(sigma), sigma)
    return pd.DataFrame({name: values.numpy() for name, values in columns.items()})


FACTORS = (1.25, 4.0, 50.0, 5000.0)
"""C2 of the panels."""
REGIONS = {
    "no protection needed": "#DDDDDD",
    "all four mechanisms": "#4477AA",
    "all but noise": "#66CCEE",
    "all but noise; printed n*, r* violate": "#CCBB44",
    "none": "#EE6677",
}
"""Mechanisms that can meet a budget, by rising required total variation, and their colours."""
STEPS = (200, 240)


@figure(
    "S3",
    title="Which budgets of leakage can be met",
    caption="By C1, which cannot exceed sqrt(ln 2), and the budget epsilon: which mechanisms have a total variation of "
    "(2 C1 - epsilon) / C2. Gaussian noise: by the lower bound, so 1/100 at most. Constants of one attacker satisfy 2 "
    "C1 < C2 / sqrt(2), so that red cannot occur with them. White lines: above the dashed one (epsilon = C1) the "
    "paper's theorem says that its metric bounds leakage; above the solid one (3/2 C1) it does.",
    experiments=(),
)
def fig_s3(_: Tables) -> Drawing:
    """A map per C2."""
    use_style()
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    frame = feasibility()
    names, tints = list(REGIONS), list(REGIONS.values())
    figure, axes = plt.subplots(1, len(FACTORS), figsize=(10.4, 3.4), sharey=True, layout="constrained")
    top = 2 * LARGEST_LEAKAGE
    for ax, factor in zip(axes, FACTORS, strict=True):
        rows = frame[frame["C2"] == factor]
        codes = rows["region"].map(names.index).to_numpy().reshape(STEPS)
        ax.imshow(
            codes.T,
            origin="lower",
            extent=(0, LARGEST_LEAKAGE, 0, top),
            aspect="auto",
            cmap=ListedColormap(tints),
            vmin=-0.5,
            vmax=len(names) - 0.5,
            interpolation="nearest",
        )
        ends = np.array([0.0, LARGEST_LEAKAGE])
        ax.plot(ends, ends, color="white", linestyle="--", linewidth=1.2)
        ax.plot(ends, 1.5 * ends, color="white", linewidth=1.2)
        ax.set(title=f"$C_2$ = {factor:g}", xlabel="$C_1$ (nats$^{1/2}$)")
        ax.grid(visible=False)
    axes[0].set_ylabel(r"budget $\epsilon$ (nats$^{1/2}$)")
    patches = [Patch(color=tint, label=name) for name, tint in REGIONS.items()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), fontsize="small")
    return Drawing(figure, frame)


def feasibility() -> pd.DataFrame:
    """Columns ``C1``, ``epsilon``, ``C2``, ``tau``, ``region``."""
    c1 = (torch.arange(STEPS[0], dtype=torch.float64) + 0.5) / STEPS[0] * LARGEST_LEAKAGE
    epsilon = (torch.arange(STEPS[1], dtype=torch.float64) + 0.5) / STEPS[1] * 2 * LARGEST_LEAKAGE
    first, second = (each.flatten() for each in torch.meshgrid(c1, epsilon, indexing="ij"))
    parts = []
    for factor in FACTORS:
        tau = required_tv(first, factor, second)
        place = torch.bucketize(tau, torch.tensor([0.0, 0.01, 0.5, 1.0], dtype=torch.float64))
        names = np.array(list(REGIONS))[place.numpy()]
        parts.append(pd.DataFrame({"C1": first, "epsilon": second, "C2": factor, "tau": tau, "region": names}))
    return pd.concat(parts, ignore_index=True)
