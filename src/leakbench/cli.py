"""The command ``leakbench``. Each command imports what it needs, so that ``--help`` stays quick."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from leakbench.errors import LeakbenchError

if TYPE_CHECKING:
    from leakbench.planning.project import Project
    from leakbench.report.cost_model import Speedup

LISTABLE = (
    "datasets",
    "models",
    "defenses",
    "attacks",
    "membership_attacks",
    "model_inversions",
    "papers",
    "experiments",
    "artifacts",
    "compared",
)


def _project(arguments: argparse.Namespace, further: Mapping[str, Any] | None = None) -> Project:
    """The project under ``--set``, and under further keys of config/config.yaml, which win."""
    from leakbench.planning.project import Project, find_root

    overrides = _assigned(arguments.set, "--set", "KEY=VALUE") | dict(further or {})
    root = Path(arguments.root) if arguments.root else find_root()
    project = Project(root, overrides)
    if project.settings.data_root and not os.environ.get("LEAKBENCH_DATA"):
        os.environ["LEAKBENCH_DATA"] = str(root / project.settings.data_root)
    return project


def _assigned(assignments: Sequence[str], where: str, form: str) -> dict[str, Any]:
    """Keys with their values, parsed as YAML.

    Raises:
        ConfigError: an assignment does not have this form, or its value is no YAML; ``where`` begins the message.
    """
    from leakbench.errors import ConfigError

    values = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{where} {assignment}: expected {form}")
        values[key] = _yaml(value, f"{where} {assignment}")
    return values


def _yaml(text: str, where: str) -> Any:
    """The value of an argument.

    Raises:
        ConfigError: it is no YAML; ``where`` begins the message.
    """
    import yaml

    from leakbench.errors import ConfigError

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        fault = " ".join(str(error).split())
        raise ConfigError(f"{where}: the value is no YAML: {fault}") from None


def _relative(project: Project, path: str) -> str:
    """A target's path relative to the project's root, however it was given."""
    root = project.root.resolve()
    for absolute in (Path(os.path.normpath(Path.cwd() / path)), Path(path).resolve()):  # results/ may be a link
        if absolute.is_relative_to(root):
            return str(absolute.relative_to(root))
    return path


def _print(arguments: argparse.Namespace, result: Any, show: Callable[[Any], None]) -> None:
    """Print a command's result: as JSON with ``--json``, else for people."""
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


def _run(arguments: argparse.Namespace) -> None:
    from leakbench.jobs.runner import Placement, run_job
    from leakbench.running.work import KEEP, SHARE, restore

    project = _project(arguments)
    placement = Placement(arguments.device, arguments.threads, arguments.tf32, arguments.compile)
    keep, shares = arguments.keep or bool(os.environ.get(KEEP)), bool(os.environ.get(SHARE))
    if "SLURM_JOB_ID" in os.environ:  # Snakemake shows SLURM's messages after this log, but only if this is not empty
        print(f"SLURM job {os.environ['SLURM_JOB_ID']} on {socket.gethostname()}", flush=True)
    for path in arguments.records:
        job = project.job(_relative(project, path))
        restored = None
        if keep and not (project.root / job.path).exists():
            restored = restore(project.root, job.path, job.digest)
        record = restored or run_job(job, project.root, placement, keep=keep, shares=shares)
        reason = f" ({record.outcome.reason})" if record.outcome.reason else ""
        took = "kept by an earlier run" if restored else f"{record.cost.wall_s:.1f} s"
        print(f"{job.path}: {record.outcome.status}{reason}, {took}")


def _show(arguments: argparse.Namespace) -> None:
    from leakbench.report.show import show

    project = _project(arguments)
    records = [_relative(project, path) for path in arguments.records]
    output = Path(arguments.output) if arguments.output else None
    for line in show(project.root, records, seed=arguments.seed, settings=arguments.setting, output=output):
        print(line)


def _list(arguments: argparse.Namespace) -> None:
    from leakbench.report.catalogue import catalogue
    from leakbench.report.terminal import print_rows

    rows = catalogue(_project(arguments), arguments.what, arguments.scale)
    _print(arguments, rows, partial(print_rows, arguments.what))


def _check(arguments: argparse.Namespace) -> int:
    from leakbench.contract.kit import answers, configured_answers
    from leakbench.contract.terminal import print_answers
    from leakbench.planning.project import CONFIGURATION

    # A component may print; standard output holds answers alone.
    with contextlib.redirect_stdout(sys.stderr):
        if arguments.source == CONFIGURATION:
            results = list(configured_answers(_project(arguments)))
        else:
            given = _assigned(arguments.parameters, "leakbench check:", "NAME=VALUE")
            results = list(answers(arguments.source, given))
    _print(arguments, [vars(answer) for answer in results], lambda _: print_answers(results))
    return int(any(answer.verdict == "wrong" for answer in results))


def _stage(arguments: argparse.Namespace) -> int:
    from leakbench.errors import ConfigError
    from leakbench.report.terminal import print_staged
    from leakbench.staging import fetch, fetch_all, look, needs

    project = _project(arguments)
    if arguments.all == bool(arguments.names):
        raise ConfigError("leakbench stage: give names, or --all for what the configured papers need")
    if not arguments.all:
        if arguments.check or arguments.scale:
            raise ConfigError("leakbench stage: --check and --scale go with --all")
        for name in arguments.names:
            fetch(name)
        return 0
    scale = arguments.scale or project.settings.scale
    wanted = needs(project.plan(scale, where="--scale"))
    if not arguments.check:
        fetch_all(wanted)
    states = [look(need, check=arguments.check) for need in wanted]
    print_staged(states, scale)
    return 0 if all(each.ready for each in states) else 1


def _merge(arguments: argparse.Namespace) -> None:
    from leakbench.report.tidy import merge

    project = _project(arguments)
    merge(project, _relative(project, arguments.table))


def _draw(arguments: argparse.Namespace) -> None:
    from leakbench.report.artifacts import artifact_of
    from leakbench.report.bare import Shape
    from leakbench.report.partial import draw_partly

    project = _project(arguments)
    path = _relative(project, arguments.artifact)
    if arguments.partial:
        for line in draw_partly(project, path):
            print(line)
    elif arguments.bare:
        for line in artifact_of(path).render(project, path, Shape.of(arguments.width, arguments.font)):
            print(line)
    else:
        artifact_of(path).render(project, path)


def _judge(arguments: argparse.Namespace) -> None:
    from leakbench.report.judging import judge

    project = _project(arguments)
    judge(project, _relative(project, arguments.claims))


def _claims(arguments: argparse.Namespace) -> None:
    from leakbench.report.catalogue import verdicts
    from leakbench.report.terminal import print_claims

    rows = verdicts(_project(arguments), arguments.scale, arguments.paper)
    _print(arguments, rows, print_claims)


def _board(arguments: argparse.Namespace) -> None:
    from leakbench.leaderboard.history import history, published_scale
    from leakbench.leaderboard.lines import lines, print_lines

    project = _project(arguments)
    scale = arguments.scale or (arguments.history and published_scale(project)) or project.settings.scale
    project.plan(scale, where="--scale")
    every = (history if arguments.history else lines)(project, scale, arguments.track)
    _print(arguments, every, print_lines)


def _submit(arguments: argparse.Namespace) -> int:
    from leakbench.leaderboard import submission
    from leakbench.leaderboard.lines import print_lines
    from leakbench.report.terminal import print_rows

    if arguments.verify:
        return _verify_submission(arguments)
    kind, spec, wrong = _checked(arguments)
    if wrong:
        print_rows(f"{arguments.source}: mend this first (leakbench check {arguments.source})", wrong)
        return 1
    scale = arguments.scale or _project(arguments).settings.scale
    project = _project(arguments, submission.overrides(kind, spec, scale))
    folder = Path(arguments.folder or f"submissions/{spec['label']}")
    print_lines(submission.submit(project, kind, spec["label"], folder, arguments.cores))
    print(f"Written to {folder}.")
    return 0


def _checked(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any], list[dict[str, Any]]]:
    """The kind of what is submitted, its specification, and what is wrong with it.

    Raises:
        ConfigError: it is not one defense or one attack, of this package or of a file.
    """
    from leakbench.comparing import ComparedSpec
    from leakbench.contract.kit import check_component, components_of
    from leakbench.errors import ConfigError
    from leakbench.leaderboard.submission import KEYS
    from leakbench.planning.mistakes import place, validated
    from leakbench.planning.variants import swept

    where = f"--parameters {arguments.parameters or '{}'}"
    given = _yaml(arguments.parameters or "{}", where)
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: expected a mapping, such as '{{scale: {{sweep: [0.01, 0.1]}}}}'")
    components = [(kind.removesuffix("s"), each) for kind, each in components_of(arguments.source, "leakbench submit")]
    submitted = [(kind, each) for kind, each in components if kind in KEYS]
    if len(submitted) != 1:
        raise ConfigError(f"{arguments.source}: {len(submitted)} defenses and attacks; name one as file.py:Class")
    kind, component = submitted[0]
    label = arguments.label or component.name
    validated(ComparedSpec, {"name": component.name, "label": label}, lambda *keys: f"--{keys[-1]}")
    variant = swept(label, component, given, partial(place, where))
    source = arguments.source
    if source.partition(":")[0].endswith(".py"):
        source = f"{Path(source.partition(':')[0]).resolve()}:{component.__name__}"
    elif component.source is not None:
        raise ConfigError(
            f"{source}: a submission holds the source; give it as a file, my_{kind}.py:My{kind.capitalize()}"
        )
    answers = check_component(f"{kind}s", component, {**variant.parameters, **next(variant.settings())[0]})
    wrong = [{"check": each.check, "what": each.message} for each in answers if each.verdict == "wrong"]
    return kind, {"name": source, "label": label, **given}, wrong


def _verify_submission(arguments: argparse.Namespace) -> int:
    from leakbench.leaderboard import submission

    folder = Path(arguments.source)
    project = _project(arguments, submission.read(folder).overrides(folder))
    recomputed = submission.verify(project, folder, arguments.part, arguments.seed)
    for each in recomputed:
        print(f"{each.path}: {each.outcome}")
    if not all(each.holds for each in recomputed):
        print(f"{folder}: the records are not of this source")
        return 1
    print(f"{folder}: digests, lines and {len(recomputed)} records hold")
    return 0


def _audit(arguments: argparse.Namespace) -> None:
    from leakbench.auditing.audit import Extent, audit
    from leakbench.auditing.captured import Request
    from leakbench.auditing.page import headline
    from leakbench.errors import ConfigError
    from leakbench.federated.local import LocalTraining
    from leakbench.jobs.runner import Placement

    shape = _numbers(arguments.shape, "--shape", int)
    if len(shape) != 3 or min(shape) < 1:
        raise ConfigError(f"--shape {arguments.shape}: expected channels, height and width, such as 3,32,32")
    if arguments.kind != "gradient" and arguments.rate is None:
        raise ConfigError(f"--kind {arguments.kind}: give the client's learning rate as --rate")
    if arguments.rate is not None and not 0 < arguments.rate < math.inf:
        raise ConfigError(f"--rate {arguments.rate}: expected a finite number above zero")
    request = Request(
        Path(arguments.update),
        arguments.model,
        Path(arguments.before),
        (shape[0], shape[1], shape[2]),
        arguments.classes,
        arguments.kind,
        arguments.batch,
        _numbers(arguments.labels, "--labels", int),
        LocalTraining(
            steps=arguments.steps,
            rate=1.0 if arguments.rate is None else arguments.rate,
            batch_size=arguments.local_batch,
        ),
        arguments.batch_norm,
        _numbers(arguments.mean, "--mean", float),
        _numbers(arguments.std, "--std", float),
    )
    extent = Extent(arguments.iterations, arguments.restarts, arguments.seed, arguments.defenses)
    folder, truth = Path(arguments.out), None if arguments.truth is None else Path(arguments.truth)
    record = audit(request, folder, Placement(arguments.device, arguments.threads).resolve(), extent, truth)
    print(headline(record))
    print(f"{folder}/audit.html says more; all numbers are in {folder}/record.json")


_Number = TypeVar("_Number", int, float)


def _numbers(text: str, where: str, number: type[_Number]) -> tuple[_Number, ...]:
    """Numbers between commas; none of an empty text."""
    from leakbench.errors import ConfigError

    try:
        return tuple(number(part) for part in text.split(",") if text)
    except ValueError:
        raise ConfigError(f"{where} {text}: expected numbers with commas between them") from None


def _publish(arguments: argparse.Namespace) -> None:
    import datetime

    from leakbench.leaderboard import PAPER as LEADERBOARD
    from leakbench.leaderboard.history import keep_lines
    from leakbench.leaderboard.state_of_the_art import write_page
    from leakbench.report.published import publish, write_pages

    project = _project(arguments)
    scale = arguments.scale or project.settings.scale
    project.plan(scale, where="--scale")
    chosen = _papers(project, arguments)
    if arguments.records or arguments.figures:
        from leakbench.publishing.archives import write_archives
        from leakbench.publishing.exhibits import outdated_pages, write_exhibits, write_published_scorecard

        files = write_archives(project, scale, chosen) if arguments.records else []
        if arguments.figures:
            files += write_exhibits(project, scale, chosen)
            files += [] if arguments.paper else [write_published_scorecard(project, scale)]
        for file in files:
            print(f"{file.relative_to(project.root)}: {file.stat().st_size / 1e6:.2f} MB")
        for page, command in outdated_pages(project, scale, chosen).items():
            print(f"{page}: shows other records; `{command}` writes it again")
        return
    published = publish(project, scale, chosen)
    if LEADERBOARD in chosen:
        published += keep_lines(project, scale, datetime.date.today())
    for path in [*published, *write_pages(project), *write_page(project)]:
        print(path)


def _adopt(arguments: argparse.Namespace) -> None:
    from leakbench.publishing.adoption import adopt

    project = _project(arguments)
    adoption = adopt(project, arguments.scale, _papers(project, arguments))
    for path, reason in adoption.left_out.items():
        print(f"{path}: left out: {reason}")
    print(f"{len(adoption.adopted)} adopted, {len(adoption.kept)} here already, {len(adoption.left_out)} left out")


def _verify(arguments: argparse.Namespace) -> int:
    import random

    from leakbench.publishing.recomputation import verify

    project = _project(arguments)
    seed = random.randrange(2**31) if arguments.seed is None else arguments.seed
    print(f"--seed {seed}")
    scale = arguments.scale or project.settings.scale
    wrong = 0
    for each in verify(project, scale, _papers(project, arguments), _seconds(arguments.within), seed):
        print(f"{each.path}: {each.outcome}", flush=True)
        wrong += not each.holds
    print(f"{wrong} records do not hold" if wrong else "all of them hold")
    return min(wrong, 1)


def _papers(project: Project, arguments: argparse.Namespace) -> list[str]:
    """The paper that is asked for, or all configured ones."""
    from leakbench.errors import UnknownName

    papers = project.settings.papers
    if arguments.paper is not None and arguments.paper not in papers:
        raise UnknownName("paper", arguments.paper, papers, "--paper")
    return [arguments.paper] if arguments.paper else papers


def _seconds(text: str) -> float:
    """A time such as ``90s``, ``10min`` or ``8h``, in seconds."""
    import re

    from leakbench.errors import ConfigError

    parsed = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|h)", text)
    if parsed is None:
        raise ConfigError(f"--within {text}: expected a time such as 90s, 10min or 8h")
    return float(parsed[1]) * {"s": 1, "min": 60, "h": 3600}[parsed[2]]


def _explain(arguments: argparse.Namespace) -> None:
    from dataclasses import asdict

    from leakbench.publishing.explanation import explain
    from leakbench.report.terminal import print_rows

    project = _project(arguments)
    explanation = explain(project, _relative(project, arguments.target))
    if arguments.json:
        print(json.dumps({"row": explanation.row, "sources": list(map(asdict, explanation.sources))}, default=str))
        return
    print_rows(arguments.target, [{"column": key, "value": str(value)} for key, value in explanation.row.items()])
    shown = [{key: value or "" for key, value in asdict(source).items()} for source in explanation.sources]
    print_rows(f"{len(shown)} records", shown)
    print("Any of them is computed again by `leakbench run <record>`.")


def _pages(arguments: argparse.Namespace) -> None:
    from leakbench.leaderboard.state_of_the_art import write_page
    from leakbench.report.published import write_pages

    project = _project(arguments)
    for path in [*write_pages(project), *write_page(project)]:
        print(path)


def _scorecard(arguments: argparse.Namespace) -> None:
    from leakbench.report.scorecard import write_scorecard

    project = _project(arguments)
    write_scorecard(project, _relative(project, arguments.page))


def _cost(arguments: argparse.Namespace) -> None:
    from leakbench.report.costs import SPEEDUP, cost_report, costs, write_costs
    from leakbench.report.terminal import print_costs

    project = _project(arguments)
    speedup = _speedup(arguments.speedup) if arguments.speedup else SPEEDUP
    estimates = costs(project, arguments.scale or project.settings.scale, arguments.device, speedup)
    write_costs(project.root, estimates)
    wall = None if arguments.within is None else _seconds(arguments.within)
    report = cost_report(project, estimates, arguments.gpus, wall)
    _print(arguments, report, print_costs)


def _speedup(text: str) -> Speedup:
    from leakbench.errors import ConfigError
    from leakbench.report.cost_model import Speedup

    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        low, high = 0.0, 0.0
    if not 0 < low <= high < float("inf"):
        raise ConfigError(f"--speedup {text}: expected LOW:HIGH, two numbers above zero, such as 100:1000")
    return Speedup(low, high)


def _status(arguments: argparse.Namespace) -> None:
    from leakbench.report.status import status
    from leakbench.report.terminal import print_status

    report = status(_project(arguments), arguments.scale)
    _print(arguments, report, print_status)


def _schemas(arguments: argparse.Namespace) -> None:
    from leakbench.report.schemas import write_schemas

    for path in write_schemas(_project(arguments).root):
        print(path)


def _part(text: str) -> float:
    """A number above 0, at most 1, for argparse."""
    try:
        part = float(text)
    except ValueError:
        part = math.nan
    if not 0 < part <= 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a part, above 0 and at most 1")
    return part


def _positive(text: str) -> int:
    """A positive integer, for argparse."""
    return _whole(text, least=1)


def _natural(text: str) -> int:
    """An integer of 0 or more, for argparse."""
    return _whole(text, least=0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number, {least} or more")
    return number


_Command: TypeAlias = Callable[[argparse.Namespace], int | None]
_AddCommand: TypeAlias = Callable[[str, _Command, str], argparse.ArgumentParser]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="leakbench",
        description="Replication of data reconstruction attacks and defenses in federated learning. "
        "A target path names a job; Snakemake runs jobs that depend on each other.",
    )
    parser.add_argument("--root", help="the checkout to work in (default: the one around the current folder)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override a key of config/config.yaml"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, function: _Command, text: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name, help=text, description=text)
        subparser.set_defaults(function=function)
        return subparser

    _add_catalogue(command)
    _add_jobs(command)
    _add_audit(command)
    _add_drawing(command)
    _add_reports(command)
    _add_leaderboard(command)
    _add_published(command)
    _add_overviews(command)
    return parser


def _add_catalogue(command: _AddCommand) -> None:
    listing = command(
        "list",
        _list,
        "List components, papers, experiments, artifacts (figures and tables), or where compared defenses join.",
    )
    listing.add_argument("what", choices=LISTABLE)
    listing.add_argument("--json", action="store_true", help="print a JSON list of objects")
    listing.add_argument("--scale", help="scale of experiments and artifacts (default: the configured one)")

    check = command("check", _check, "Check that a defense, attack, data set or model keeps to its contract.")
    check.add_argument(
        "source",
        metavar="SOURCE",
        help="path/to/file.py, package.module, either:Class, or a name; or config/config.yaml, for the quick checks "
        "of your components that its keys compare and ensemble name, with which a run begins",
    )
    check.add_argument("parameters", nargs="*", metavar="NAME=VALUE", help="parameters to check with")
    check.add_argument("--json", action="store_true", help="print a JSON list of objects")


def _add_jobs(command: _AddCommand) -> None:
    run = command("run", _run, "Run exactly the job that a record's path names, and write the record.")
    run.add_argument("records", nargs="+", metavar="RECORD", help="results/<scale>/<paper>/.../<part>.json")
    run.add_argument("--device", help="torch device (default: cuda if there is one, else cpu)")
    run.add_argument(
        "--threads", type=_positive, default=1, help="CPU threads; results may differ in the last digits (default: 1)"
    )
    run.add_argument("--tf32", action="store_true", help="let a GPU round products to TF32; the record says so")
    run.add_argument(
        "--compile", action="store_true", help="attack through torch.compile: minutes to start, then faster"
    )
    run.add_argument(
        "--keep",
        action="store_true",
        help="leave a copy of the record in work/, or restore it if the record is missing (in SLURM jobs: always)",
    )

    show = command("show", _show, "Draw the best, median and worst victims of records beside their reconstructions.")
    show.add_argument("records", nargs="+", metavar="RECORD", help="records of attacks on the same images")
    show.add_argument("--seed", type=int, help="the seed of the victims (default: the first)")
    show.add_argument(
        "--setting", metavar="KEY=VALUE", action="append", default=[], help="only this value of a swept parameter"
    )
    show.add_argument("--output", metavar="FILE", help="png, pdf or svg (default: a PNG beside the first record)")

    stage = command("stage", _stage, "Fetch data sets or weights, on a machine with a network; jobs run offline.")
    stage.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a data set, lpips, lpips_vgg, bert_vocabulary, or weights such as google-bert/bert-base-uncased",
    )
    stage.add_argument("--all", action="store_true", help="all that the configured papers need; go on after a failure")
    stage.add_argument("--scale", help="with --all: at this scale (default: the configured one)")
    stage.add_argument(
        "--check",
        action="store_true",
        help="with --all: fetch nothing; list what is there, and compare it with its digests",
    )


def _add_drawing(command: _AddCommand) -> None:
    draw = command("draw", _draw, "Draw a figure, or write a table, from merged records.")
    draw.add_argument("artifact", metavar="ARTIFACT", help="figures/<scale>/<paper>/fig02.png, or table01.md")
    part = draw.add_mutually_exclusive_group()
    part.add_argument(
        "--partial",
        action="store_true",
        help="from the records that are there, merged or not: marked with their number, and written to the folder "
        "'partial' beside it",
    )
    part.add_argument(
        "--bare",
        action="store_true",
        help="for a paper: without the caption, which is in a LaTeX file beside it, written to the folder 'bare'",
    )
    draw.add_argument(
        "--width",
        default="3.3in",
        help="width of a bare figure, in in, cm, mm or pt (default: that of a column, 3.3in)",
    )
    draw.add_argument("--font", type=float, default=8.0, help="size of a bare figure's text in points (default: 8)")


def _add_reports(command: _AddCommand) -> None:
    merge = command("merge", _merge, "Merge an experiment's records into one tidy table.")
    merge.add_argument("table", metavar="TABLE", help="results/<scale>/<paper>/<experiment>/records.parquet")
    judge = command("judge", _judge, "Judge a paper's claims from merged records, and write the verdicts.")
    judge.add_argument("claims", metavar="CLAIMS", help="figures/<scale>/<paper>/claims.csv, .md or .tex")
    claims = command("claims", _claims, "Print a verdict on every claim of the papers, from the tables that exist.")
    claims.add_argument("--paper", help="only this paper")
    claims.add_argument("--scale", help="the scale (default: the configured one)")
    claims.add_argument("--json", action="store_true", help="print a JSON list of objects")
    scorecard = command("scorecard", _scorecard, "Write claims, findings, figures and tables of a scale as one page.")
    scorecard.add_argument("page", metavar="PAGE", help="results/<scale>/scorecard.html")
    explain = command("explain", _explain, "Name the records behind a row of a figure or table.")
    explain.add_argument("target", metavar="TARGET", help="figures/<scale>/<paper>/fig01:<row>, rows counted from 1")
    explain.add_argument("--json", action="store_true", help="print a JSON object")


def _add_leaderboard(command: _AddCommand) -> None:
    board = command("board", _board, "Print the leaderboard, as Figure 1 shows it.")
    board.add_argument("--track", help="the letter of a track (default: all)")
    board.add_argument(
        "--scale", help="the scale (default: the configured one; of --history, one with published lines)"
    )
    board.add_argument(
        "--history", action="store_true", help="print the published lines instead, with the day of each change"
    )
    board.add_argument(
        "--json",
        action="store_true",
        help="print a JSON list of objects, a line of the leaderboard each; losses are fractions",
    )
    submit = command(
        "submit",
        _submit,
        "Check a defense or an attack, compute its lines of the leaderboard, and make a folder for a pull request.",
    )
    submit.add_argument("source", metavar="FILE", help="file.py:Class, or a registered name; with --verify the folder")
    submit.add_argument("--label", help="name on the leaderboard (default: the registered one)")
    submit.add_argument(
        "--parameters", metavar="YAML", help="parameters, such as '{scale: {sweep: [0.01, 0.1]}}', from weak to strong"
    )
    submit.add_argument("--scale", help="the scale (default: the configured one)")
    submit.add_argument("--folder", help="folder of the submission (default: submissions/<label>)")
    submit.add_argument("--cores", type=_positive, default=2, metavar="N", help="cores of the workflow (default: 2)")
    submit.add_argument("--verify", action="store_true", help="check a submission, and recompute a part of it")
    submit.add_argument(
        "--part",
        type=_part,
        default=0.1,
        metavar="P",
        help="with --verify: the part of the records to recompute (default: 0.1)",
    )
    submit.add_argument("--seed", type=int, default=0, help="with --verify: draws other records (default: 0)")


def _add_published(command: _AddCommand) -> None:
    publish = command("publish", _publish, "Copy a scale's verdicts to published/, and show them on the pages.")
    publish.add_argument("--paper", help="only this paper")
    publish.add_argument("--scale", help="the scale (default: the configured one)")
    publish.add_argument(
        "--records", action="store_true", help="pack the records instead, as archives that anyone can adopt"
    )
    publish.add_argument(
        "--figures",
        action="store_true",
        help="write pages of the figures and tables of published records instead and, of all papers, the scorecard",
    )
    adopt = command("adopt", _adopt, "Put published records into results/, as if they had been computed here.")
    adopt.add_argument("scale", metavar="SCALE", help="scale of the published records, such as laptop")
    adopt.add_argument("--paper", help="only this paper")
    verify = command("verify", _verify, "Recompute a random sample of published records, and compare.")
    verify.add_argument("--scale", help="the scale (default: the configured one)")
    verify.add_argument("--paper", help="only this paper")
    verify.add_argument(
        "--within", default="10min", metavar="TIME", help="time to compute, such as 90s or 2h (default: 10min)"
    )
    verify.add_argument("--seed", type=int, help="seed of the sample (default: another one each time)")
    command("pages", _pages, "Write the verdicts on the pages, and the reference of all components.")


def _add_audit(command: _AddCommand) -> None:
    audit = command("audit", _audit, "Attack a captured gradient or update of your own training, with your own model.")
    audit.add_argument("update", metavar="UPDATE", help="safetensors file, named as model.named_parameters()")
    audit.add_argument(
        "--model",
        required=True,
        metavar="FILE.py:NAME",
        help="your module's class, or a function that returns the module",
    )
    audit.add_argument(
        "--before", required=True, metavar="FILE", help="safetensors file of the state dict before the step"
    )
    audit.add_argument("--shape", required=True, metavar="C,H,W", help="shape of one input")
    audit.add_argument("--classes", required=True, type=_positive, metavar="N", help="number of classes")
    audit.add_argument(
        "--kind",
        default="gradient",
        choices=("gradient", "update", "weights"),
        help="content of UPDATE: a gradient (default), parameters after minus before, or parameters after",
    )
    audit.add_argument(
        "--batch", type=_positive, default=1, metavar="N", help="number of images behind the update (default: 1)"
    )
    audit.add_argument("--labels", default="", metavar="L,L,...", help="true labels, for an attacker who knows them")
    audit.add_argument("--steps", type=_positive, default=1, metavar="N", help="local SGD steps (default: 1)")
    audit.add_argument("--rate", type=float, help="local learning rate")
    audit.add_argument("--local-batch", type=_positive, metavar="N", help="images per local step (default: all)")
    audit.add_argument(
        "--batch-norm",
        default="train",
        choices=("train", "eval"),
        help="how BatchNorm normalised: by the batch's statistics (train, default), or the running ones (eval)",
    )
    audit.add_argument("--mean", default="0", metavar="M,M,M", help="inputs are (pixels - mean) / std (default: 0)")
    audit.add_argument(
        "--std", default="1", metavar="S,S,S", help="as --mean: one per channel, or one for all (default: 1)"
    )
    audit.add_argument(
        "--truth", metavar="FOLDER", help="folder of the true images, to score with; no attack sees them"
    )
    audit.add_argument("--defenses", action="store_true", help="try defenses on the update, and attack again")
    audit.add_argument("--out", default="audit", metavar="FOLDER", help="folder of the results (default: audit)")
    audit.add_argument(
        "--iterations", type=_positive, default=1000, metavar="N", help="iterations of every search (default: 1000)"
    )
    audit.add_argument("--restarts", type=_positive, default=4, metavar="N", help="starts of every search (default: 4)")
    audit.add_argument("--seed", type=_natural, default=0, help="seed of all randomness (default: 0)")
    audit.add_argument("--device", help="torch device (default: cuda if there is one, else cpu)")
    audit.add_argument("--threads", type=_positive, default=1, metavar="N", help="CPU threads (default: 1)")


def _add_overviews(command: _AddCommand) -> None:
    cost = command("cost", _cost, "Estimate the time and storage that a scale takes, from earlier records.")
    cost.add_argument("--scale", help="the scale (default: the configured one)")
    cost.add_argument("--json", action="store_true", help="print a JSON object")
    cost.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        help="device of the jobs that can use a GPU (default: as the scale says)",
    )
    cost.add_argument(
        "--speedup",
        metavar="LOW:HIGH",
        help="assumed speed-up of a GPU over one core, without records of a GPU (default: 100:1000)",
    )
    cost.add_argument("--gpus", type=_positive, default=8, metavar="N", help="GPUs, or cores, at a time (default: 8)")
    cost.add_argument(
        "--within", metavar="TIME", help="propose figures and tables that fit into a time, such as 90s or 8h"
    )
    status = command("status", _status, "Show what of a scale is done, fails and runs.")
    status.add_argument("--scale", help="the scale (default: the configured one)")
    status.add_argument("--json", action="store_true", help="print a JSON object")
    command("schemas", _schemas, "Regenerate the JSON Schemas in workflow/schemas.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status. Errors that a user can act on are printed without a traceback."""
    parsed: Any = _parser().parse_args(arguments)
    # Jobs are on one thread, and last digits depend on the threads of numpy's libraries, which are loaded later.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        status = parsed.function(parsed)
        sys.stdout.flush()
    except LeakbenchError as error:
        print(f"leakbench: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status or 0
