"""Every command and every file of the documentation works as it is written."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
from tests.forking import run_module, snakemake

from leakbench.paper_folders import paper_folders
from leakbench.report.artifacts import artifact_of

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "config", "figures", "results")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / each / "README.md" for each in FOLDERS),
    *(paper.page for paper in paper_folders().values()),
]
# Files that readers write.
WRITTEN = {f"config/papers/{paper}.yaml" for paper in paper_folders()}

# Commands that cannot be run here as they stand, and the test that runs them.
ELSEWHERE = {
    "git clone <this repository> leakbench && cd leakbench": ".ci/run",
    "make replicate": ".ci/run",
    "make test": ".ci/run",
    "leakbench stage mnist fashion_mnist cifar10": "tests/data/test_staging.py",
    "leakbench stage --all --scale full": "tests/data/test_needs.py",
    "leakbench stage --all --scale full --check": "tests/data/test_needs.py",
    "leakbench draw figures/smoke/optimal_defense/fig04.pdf --partial": "tests/report/test_partial.py",
    "leakbench draw figures/smoke/optimal_defense/fig04.pdf --bare --width 3.3in": "tests/report/test_bare.py",
    "make lint": ".ci/run",
    "snakemake --cores all --config scale=laptop": "tests/workflow/test_dry_runs.py",
    "leakbench publish --scale smoke": "tests/report/test_published.py",
    "leakbench pages": "tests/report/test_published.py",
    "leakbench publish --records --scale smoke": "tests/publishing/test_commands.py",
    "leakbench publish --figures --scale smoke": "tests/report/test_exhibits.py",
    "leakbench adopt smoke": "tests/publishing/test_commands.py",
    "leakbench verify --scale smoke --within 10min": "tests/publishing/test_commands.py",
    "leakbench adopt laptop --paper secagg_dp": "tests/publishing/test_commands.py",
    "leakbench explain figures/laptop/secagg_dp/tableS3:1": "tests/publishing/test_commands.py",
    "snakemake --cores 2 figures/smoke/sixth/fig01.pdf figures/smoke/sixth/claims.csv": (
        "tests/docs/test_add_a_paper.py"
    ),
    "leakbench check sign_noise.py": "tests/docs/test_add_a_defense.py",
    "leakbench --set compare=../mine/sign_noise.py:SignNoise list compared": "tests/docs/test_add_a_defense.py",
    "snakemake --cores 2 figures/smoke/optimal_defense/fig04.pdf --config compare=../mine/sign_noise.py:SignNoise": (
        "tests/docs/test_add_a_defense.py"
    ),
    "snakemake --profile slurm": "tests/slurm/test_profile.py",
    "snakemake --profile slurm --dry-run --quiet rules": "tests/slurm/test_profile.py",
    "sbatch driver.sh": "tests/slurm/test_driver.py",
    "python examples/audit_plain_torch.py captured": "tests/auditing/test_examples.py",
    "leakbench audit captured/update.safetensors --model examples/audit_plain_torch.py:Net --before "
    "captured/before.safetensors --shape 1,16,16 --classes 10 --batch 2 --truth captured/images --defenses": (
        "tests/auditing/test_examples.py"
    ),
    "leakbench submit sign_noise.py --parameters '{probability: {sweep: [0.01, 0.1]}}'": (
        "tests/leaderboard/test_submission.py"
    ),
    "leakbench submit --verify submissions/sign_noise": "tests/leaderboard/test_submission.py",
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "console") for line in block.splitlines()]
    return sorted({line for line in lines if line and not line.startswith("export ")})


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The configuration and the workflow in an empty folder."""
    return new_checkout(tmp_path)


def new_checkout(folder: Path) -> Path:
    for name in ("config", "workflow", "slurm"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder)
    return folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``ran(program, ...)``: a checkout in which a command has run, once for all tests."""

    @cache
    def once(*command: str) -> Path:
        folder = new_checkout(tmp_path_factory.mktemp("ran"))
        run(command, folder)
        return folder

    return once


def run(command: Sequence[str], folder: Path) -> str:
    """Run a module of Python, by name; returns what it printed."""
    name, *arguments = command
    status, said = snakemake(arguments, folder) if name == "snakemake" else run_module(name, arguments, folder)
    assert status == 0, said
    return said


def test_documentation_holds_commands() -> None:
    assert "make replicate" in commands()
    assert len(commands()) > 8
    assert set(commands()) >= ELSEWHERE.keys()


@pytest.mark.parametrize("command", commands())
def test_command(command: str, checkout: Path, ran: Callable[..., Path]) -> None:
    program, *arguments = shlex.split(command)
    if command in ELSEWHERE:
        assert (ROOT / ELSEWHERE[command]).is_file()
    elif program == "leakbench" and arguments[0] == "run":
        ran("leakbench", *arguments)
    elif program == "leakbench":
        if arguments[0] == "show":  # what it draws comes first
            checkout = ran("leakbench", "run", *arguments[1:])
        run(["leakbench", *arguments], checkout)
    elif program == "snakemake":  # dry: the targets exist and the profile is understood
        ran("snakemake", *arguments, *(() if "--dry-run" in arguments else ("--dry-run", "--quiet", "rules")))
    elif program == "make":
        subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, check=True)
    elif program == "python" and arguments[0] == "-m":
        assert help_of(arguments[1])  # of its parser, whatever the arguments
    elif program == "python":
        assert (ROOT / arguments[0]).is_file()
        help_of_script = [sys.executable, str(ROOT / arguments[0]), "--help"]
        subprocess.run(help_of_script, cwd=checkout, capture_output=True, check=True)
    else:
        pytest.fail(f"no test runs the documented command '{command}'")


def inline() -> list[str]:
    found = (re.findall(r"`((?:leakbench|snakemake|make) [^`]+)`", page.read_text()) for page in PAGES)
    return sorted(set().union(*found))


@cache
def help_of(*command: str) -> str:
    return run([*command, "--help"], ROOT)


@pytest.mark.parametrize("command", inline())
def test_commands_within_sentences(command: str) -> None:
    """What they name exists: the subcommand or the target of make, its options, the figure."""
    program, *words = command.split()
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    own = [words[0]] if program == "leakbench" and not words[0].startswith("-") else []
    for option in (word for word in words if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", help_of(program, *own))
    for path in (word for word in words if word.startswith("figures/") and "{" not in word):
        artifact_of(path)
    assert own or program == "snakemake" or "--help" in words
    assert help_of(program, *own)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_are_there(page: Path) -> None:
    """Of the checkout, or of the package: ``theory/capacity.py``."""
    tops = {folder: {each.name for each in folder.iterdir()} for folder in (ROOT, ROOT / "src", ROOT / "src/leakbench")}
    for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*\.(?:py|smk|ya?ml|sh|csv|json))(?:::\w+)?`", page.read_text()):
        under = [folder for folder, names in tops.items() if path.partition("/")[0] in names]
        assert not under or path in WRITTEN or any((folder / path).exists() for folder in under), path


def test_the_map_has_every_room() -> None:
    """The page has every room and every file of the package that stands in none, and no others."""
    house = (ROOT / "docs" / "architecture.md").read_text().partition("## Where things are")[2].partition("\n## ")[0]
    package = ROOT / "src" / "leakbench"
    tops = {each.name + "/" * each.is_dir() for each in package.iterdir() if not each.name.startswith("_")} - {
        "py.typed"
    }
    assert tops <= set(re.findall(r"[\w.]+/?", house))
    there = {
        each.name for folder in (package, ROOT / "lint", ROOT / "config", ROOT / "slurm") for each in folder.rglob("*")
    }
    assert set(re.findall(r"\b\w+\.(?:py|yaml)\b", house)) <= there


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
