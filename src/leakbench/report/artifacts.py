"""Figures and tables of papers: registered under the paper's own number, drawn from tidy tables, found by path.

Supplements of ours, which the paper does not have, are numbered S1, S2, ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, Union

from leakbench.errors import ConfigError, UnknownName
from leakbench.lazy import pd
from leakbench.paper_folders import import_modules, paper_folders
from leakbench.records import atomic_write
from leakbench.report.bare import FOLDER, Shape, fit
from leakbench.report.compared import Places, defenses_apart, places_of, settings_apart
from leakbench.report.gate_verdicts import void_notes
from leakbench.report.labels import Reads, check_labels, declared
from leakbench.report.record_tensors import RecordTensors
from leakbench.report.style import add_caption, add_mark, pictures
from leakbench.report.tidy import adaptive_path, gates_path, needed, read_frame, table_path
from leakbench.report.under_attacked import COLUMN, DAGGER, under_attacked, under_attacked_notes

if TYPE_CHECKING:
    from leakbench.jobs.base import JobKind
    from leakbench.planning.plan import Plan
    from leakbench.planning.project import Project
    from leakbench.report.plots import Drawing

FIGURES = "figures"
LATEX = "latex"
"""Attribute of data frames that hold their LaTeX themselves."""
FORMATS = {"figure": ("pdf", "png", "csv"), "table": ("csv", "md", "tex")}

Tables = Mapping[str, "pd.DataFrame"]
"""Tidy tables by the name of their experiment."""
Made = Union["Drawing", "pd.DataFrame"]
Make = Callable[..., Made]
"""From :data:`Tables`, and :class:`RecordTensors` where tensors are asked for, to a drawing or a data frame."""


@dataclass(frozen=True)
class Artifact:
    """A figure or table of a paper.

    Attributes:
        number: the paper's own number, or that of a supplement of ours: ``S1``, ``S2``, ...
        caption: what is shown and under which conditions, but for the scale.
        reads: the experiments whose tidy tables it reads, with the labels that it reads of them; none for those from
            formulas alone.
        make: the function without side effects from tidy tables to a drawing (figures) or a data frame (tables).
        tensors: the experiments whose records' tensors it reads too, as :class:`RecordTensors`.
        leaves_out: reason why it does not show defenses that ``compare`` adds to its experiments, as the end of a
            sentence; empty where it shows them.
        any_sweep: whether it handles any swept parameter. If not, every setting of a compared defense becomes a defense
            of its own, since the figure knows only the parameters of the paper's defenses.
        in_parts: whether it shows what there is where a scale leaves out some of its experiments, whose tables are
            empty then. If not, such a scale does not have it.
        leads: whether the scorecard begins with it.
    """

    paper: str
    kind: Literal["figure", "table"]
    number: int | str
    title: str
    caption: str
    reads: tuple[Reads, ...]
    make: Make
    tensors: tuple[str, ...] = ()
    leaves_out: str = ""
    any_sweep: bool = False
    in_parts: bool = False
    leads: bool = False

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the experiments whose tidy tables it reads."""
        return tuple(entry.experiment for entry in self.reads)

    @property
    def name(self) -> str:
        """``fig02``, ``table01``, ``figS1``."""
        number = self.number if self.supplement else f"{self.number:02d}"
        return f"{'fig' if self.kind == 'figure' else 'table'}{number}"

    @property
    def supplement(self) -> bool:
        """Whether the paper does not have it."""
        return isinstance(self.number, str)

    @property
    def order(self) -> tuple[str, str, bool, int]:
        """Sort key: by paper, figures first, supplements after the paper's own, by number."""
        return self.paper, self.kind, self.supplement, int(str(self.number).removeprefix("S"))

    def path(self, scale: str, extension: str) -> str:
        """Path of the file, relative to the project's root."""
        return f"{FIGURES}/{scale}/{self.paper}/{self.name}.{extension}"

    def paths(self, scale: str) -> list[str]:
        """Paths of all its files."""
        return [self.path(scale, extension) for extension in FORMATS[self.kind]]

    def inputs(self, scale: str) -> list[str]:
        """The tidy tables it reads, and the verdicts on the attacks in them."""
        tables = self._tables(scale)
        return [*tables, *map(gates_path, tables), *map(adaptive_path, tables)]

    def check(self, plan: Plan) -> None:
        """Look up the experiments and labels that it reads.

        Raises:
            UnknownName: the paper's grid does not have one.
        """
        check_labels(plan, self.paper, f"{self.kind} {self.number}", self.reads)

    def check_made(self, plan: Plan) -> None:
        """Look up the experiments and labels that it reads, and whether the plan's scale has these experiments.

        Raises:
            UnknownName: the paper's grid does not have one.
            ConfigError: the scale leaves an experiment out.
        """
        self.check(plan)
        if absent := self.lacks(plan):
            raise ConfigError(
                f"{self.path(plan.scale, FORMATS[self.kind][0])}: the scale '{plan.scale}' leaves out what it reads "
                f"({', '.join(absent)}). Take another scale, or give these experiments data sets at this one"
            )

    def lacks(self, plan: Plan) -> list[str]:
        """The experiments that the plan's scale leaves out, where it cannot be made without them; none elsewhere."""
        absent = [name for name in self.experiments if plan.leaves_out(self.paper, name)]
        return [] if self.in_parts and len(absent) < len(self.experiments) else absent

    def _tables(self, scale: str) -> list[str]:
        return [table_path(scale, self.paper, experiment) for experiment in self.experiments]

    def records(self, project: Project, scale: str) -> list[str]:
        """Paths of the records it takes: those of its tables, of their gates, and those that these jobs read."""
        jobs = [job for table in self._tables(scale) for job in needed(project, table)]
        paths: dict[str, None] = {}
        while jobs:
            job = jobs.pop()
            if job.path not in paths:
                paths[job.path] = None
                jobs += job.uses.values()
        return [*paths]

    def full_caption(self, project: Project, scale: str) -> str:
        """The caption with the number, and of experiments the data, models, seeds and scale."""
        plan = project.plan(scale)
        opening = (
            f"{self.kind.capitalize()} {self.number}. {'Not in the paper. ' if self.supplement else ''}{self.caption}"
        )
        if not self.experiments:
            return f"{opening} From formulas alone, so the same at every scale."
        jobs = [plan.experiment_jobs(self.paper, experiment) for experiment in self.experiments]
        data = _listed([[job.dataset.label for job in of_one] for of_one in jobs])
        models = _listed([[job.model.label for job in of_one] for of_one in jobs])
        seeds = _seeds(job.kind for of_one in jobs for job in of_one)
        return f"{opening} Data: {data}; model: {models}; seeds: {seeds}. {plan.caption}"

    def render(self, project: Project, path: str, bare: Shape | None = None) -> list[str]:
        """Write all formats of this artifact, at the scale that ``path`` names; returns the paths.

        Args:
            project: the project.
            path: of any format.
            bare: write it without its caption, of this shape, into a folder beside the framed one.
        """
        scale = PurePosixPath(path).parts[1]
        plan = project.plan(scale, where=path)
        self.check_made(plan)
        tables = {
            experiment: read_frame(project.root, table, f"merge {table}")
            for experiment, table in zip(self.experiments, self._tables(scale), strict=True)
        }
        stored = RecordTensors(project.root, {name: plan.experiment_jobs(self.paper, name) for name in self.tensors})
        made = self.made(tables, stored, places_of(project.compared))
        gates, adaptive = (
            [read_frame(project.root, of(table), f"merge {table}") for table in self._tables(scale)]
            for of in (gates_path, adaptive_path)
        )
        caption = [self.full_caption(project, scale), *notes_on_marks(made, tables, gates, adaptive)]
        contents = formats(made, caption, label=self.label) if bare is None else self._bare_formats(made, caption, bare)
        file = PurePosixPath(self.path(scale, "csv"))
        folder = file.parent if bare is None else file.parent / FOLDER
        written = {str(folder / f"{self.name}.{extension}"): content for extension, content in contents.items()}
        for name, content in written.items():
            atomic_write(project.root / name, content)
        return list(written)

    def _bare_formats(self, made: Made, caption: Sequence[str], shape: Shape) -> dict[str, bytes]:
        """Pictures, or the rows of a table, and their caption with a label in a LaTeX file of its own."""
        words = escaped(" ".join(caption))
        beside = {"caption.tex": f"\\caption{{{words}}}\n\\label{{{self.label}}}\n".encode()}
        if isinstance(made, pd.DataFrame):
            return {"tex": _latex(made).encode(), **beside}
        fit(made.figure, shape)
        return {**_pictures(made), **beside}

    @property
    def label(self) -> str:
        """Its label in LaTeX, ``fig:cdpa-fig05``."""
        return f"{'fig' if self.kind == 'figure' else 'tab'}:{self.paper}-{self.name}"

    def made(self, tables: Tables, stored: RecordTensors, compared: Places) -> Made:
        """The drawing or data frame, from tidy tables.

        Args:
            tables: the tidy tables of :attr:`experiments`.
            stored: tensors of the experiments that :attr:`tensors` names.
            compared: places of compared defenses; see :attr:`any_sweep`.
        """
        apart = defenses_apart if self.any_sweep else settings_apart
        tables = {name: apart(frame, compared) for name, frame in tables.items()}
        return self.make(tables, stored) if self.tensors else self.make(tables)


def shows_under_attacked(made: Made) -> bool:
    """Whether it shows a defense that is under-attacked, and marks it."""
    if not isinstance(made, pd.DataFrame):
        return under_attacked(made.numbers)
    return under_attacked(made) or bool(made.astype(str).apply(lambda cells: cells.str.contains(DAGGER)).any(axis=None))


def notes_on_marks(
    made: Made, tables: Tables, gates: Sequence[pd.DataFrame], adaptive: Sequence[pd.DataFrame]
) -> list[str]:
    """Sentences on the void series of a figure, whose attacks are too weak, and on defenses marked as under-attacked.

    Args:
        made: the figure or table.
        tables: the tidy tables that it is made from.
        gates: gates.csv of every experiment.
        adaptive: adaptive.csv of every experiment.
    """
    notes = []
    if not isinstance(made, pd.DataFrame) and made.shows_void:
        rows = pd.concat(tables.values())
        notes += void_notes(pd.concat(gates), dict(zip(rows["metric"], rows["unit"], strict=True)))
    if shows_under_attacked(made):
        notes += under_attacked_notes(pd.concat(adaptive))
    return notes


def formats(made: Made, caption: Sequence[str], share: str = "", label: str = "") -> dict[str, bytes]:
    """The content of every file of an artifact, by its extension.

    Args:
        made: the drawing or the table.
        caption: its lines.
        share: ``5 of 8 records``, of an artifact from a part of its records: drawings and tables are marked as partial,
            and CSV has a column ``partial``; empty otherwise.
        label: of a table, in LaTeX.
    """
    if isinstance(made, pd.DataFrame):
        return _table_formats(made, "\n".join(caption), share, label)
    return _figure_formats(made, "\n".join(caption), share)


def _figure_formats(drawing: Drawing, caption: str, share: str) -> dict[str, bytes]:
    add_caption(drawing.figure, caption)
    if share:
        add_mark(drawing.figure, _mark(share))
    return {"csv": _csv(drawing.numbers, share), **_pictures(drawing)}


def _pictures(drawing: Drawing) -> dict[str, bytes]:
    import matplotlib.pyplot as plt

    contents = pictures(drawing.figure)
    plt.close(drawing.figure)
    return contents


def _mark(share: str) -> str:
    return f"PARTIAL: {share}"


def _csv(frame: pd.DataFrame, share: str) -> bytes:
    return (frame.assign(partial=share) if share else frame).to_csv(index=False).encode()


def escaped(text: str) -> str:
    """Plain text as LaTeX."""
    return text.translate(_LATEX)


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def _table_formats(frame: pd.DataFrame, caption: str, share: str = "", label: str = "") -> dict[str, bytes]:
    head, title = (f"**{_mark(share)}**\n\n", f"{_mark(share)}. ") if share else ("", "")
    if LATEX in frame.attrs:
        latex = (f"\\textbf{{{escaped(_mark(share))}}}\n\n" if share else "") + _latex(frame)
    else:
        latex = _latex(frame, caption=escaped(title + caption), label=label or None)
    return {
        "csv": _csv(frame, share),
        "md": f"{head}{_with_daggers(frame).to_markdown(index=False)}\n\n{caption}\n".encode(),
        "tex": latex.encode(),
    }


def _latex(frame: pd.DataFrame, caption: str | None = None, label: str | None = None) -> str:
    """A table in LaTeX with the rules of booktabs: its rows alone, or with a caption and a label around them."""
    if LATEX in frame.attrs:
        return str(frame.attrs[LATEX])
    shown = _with_daggers(frame)
    latex: str = shown.to_latex(index=False, caption=caption, label=label, escape=True)  # escapes the cells alone
    return latex


def _with_daggers(frame: pd.DataFrame) -> pd.DataFrame:
    """A table to read: under-attacked defenses have a mark behind their name, and no column."""
    if COLUMN not in frame:
        return frame
    weak = frame[COLUMN].astype(bool)
    return frame.assign(defense=frame["defense"].mask(weak, frame["defense"] + f" {DAGGER}")).drop(columns=COLUMN)


_artifacts: dict[tuple[str, str], Artifact] = {}


def artifact(
    paper: str,
    kind: Literal["figure", "table"],
    number: int | str,
    *,
    title: str,
    caption: str,
    experiments: Iterable[str | Reads],
    tensors: tuple[str, ...] = (),
    leaves_out: str = "",
    any_sweep: bool = False,
    in_parts: bool = False,
    leads: bool = False,
) -> Callable[[Make], Make]:
    """Decorator that registers the function that makes an artifact; the arguments are :class:`Artifact`'s.

    >>> from leakbench.lazy import pd
    >>> @artifact("my_paper", "table", 1, title="Utility", caption="Mean accuracy.", experiments=["training"])
    ... def table01(tables: Tables) -> pd.DataFrame:
    ...     return tables["training"].groupby("defense")["value"].mean().reset_index()
    >>> table01({"training": pd.DataFrame({"defense": ["none", "none"], "value": [0.5, 0.75]})})
      defense  value
    0    none  0.625

    Raises:
        ConfigError: the number is taken or malformed, or ``tensors`` names an experiment that it does not read.
    """

    def register(make: Make) -> Make:
        if isinstance(number, str) and not re.fullmatch("S[1-9][0-9]*", number):
            raise ConfigError(f"{paper}: '{number}' numbers no {kind}; expected the paper's own number, or S1, S2, ...")
        read = declared(experiments)
        how = (tensors, leaves_out, any_sweep, in_parts, leads)
        entry = Artifact(paper, kind, number, title, caption, read, make, *how)
        if unread := sorted(set(tensors) - set(entry.experiments)):
            names = ", ".join(unread)
            raise ConfigError(f"{paper}: {entry.name} asks for tensors of {names}; name it in experiments=..., too")
        if (paper, entry.name) in _artifacts:
            raise ConfigError(f"{paper}: {entry.name} is registered twice")
        _artifacts[paper, entry.name] = entry
        return make

    return register


@cache
def artifacts() -> tuple[Artifact, ...]:
    """Every artifact of every paper, in :attr:`Artifact.order`."""
    for paper in paper_folders().values():
        import_modules(paper.package)
    return tuple(sorted(_artifacts.values(), key=lambda entry: entry.order))


def _listed(by_experiment: Sequence[Sequence[str]]) -> str:
    """Labels of data sets or models in the order of the grid, with those apart that some experiments lack.

    >>> _listed([["a", "b"], ["a", "a"], []])
    'a, in part b'
    >>> _listed([["a"], ["b"]])
    'a, b'
    """
    present = [labels for labels in by_experiment if labels]
    every = list(dict.fromkeys(label for labels in present for label in labels))
    shared = [label for label in every if all(label in labels for labels in present)]
    rest = ", ".join(label for label in every if label not in shared)
    return ", ".join([*shared, f"in part {rest}"] if shared and rest else every)


def _seeds(kinds: Iterable[JobKind]) -> str:
    """Numbers of seeds: one, or by the kind of job ``8 (attack), 5 (train)``."""
    by_kind: dict[str, int] = {}
    for kind in kinds:
        by_kind[kind.name] = max(kind.seeds, by_kind.get(kind.name, 0))
    if len(set(by_kind.values())) == 1:
        return str(next(iter(by_kind.values())))
    return ", ".join(
        f"{seeds} ({name})" for name, seeds in sorted(by_kind.items(), key=lambda item: (-item[1], item[0]))
    )


def artifacts_at(plan: Plan) -> list[Artifact]:
    """The artifacts of the plan's papers that its scale has: it leaves out none of the experiments that they need."""
    return [entry for entry in artifacts() if entry.paper in plan.papers and not entry.lacks(plan)]


def artifact_of(path: str) -> Artifact:
    """The artifact that a path under ``figures`` names.

    Raises:
        ConfigError: no such artifact; the message lists those that exist.
    """
    target = PurePosixPath(path)
    if len(target.parts) != 4 or target.parts[0] != FIGURES:
        raise ConfigError(f"{path}: expected {FIGURES}/<scale>/<paper>/<figNN|tableNN>.<format>")
    _, _, paper, file = target.parts
    of_paper = {each.name: each for each in artifacts() if each.paper == paper}
    if not of_paper:
        raise UnknownName("paper", paper, {each.paper for each in artifacts()}, path)
    name, _, extension = file.partition(".")
    if name not in of_paper:
        raise UnknownName("artifact", name, of_paper, path)
    entry = of_paper[name]
    if extension not in FORMATS[entry.kind]:
        raise UnknownName("format", extension, FORMATS[entry.kind], path)
    return entry
