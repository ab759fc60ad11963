"""The commands that a user types, and what they see when something is wrong.

Owns words, options and exit codes: 0 done, 1 a run that could not go on, 2 a mistake that the user can mend,
130 Ctrl-C. Everything heavy (ray, torch, engines, aim) stands behind imports inside the commands, so that
`--help`, `--version` and `--dry-run` answer at once.
"""

import os
import shlex
import signal
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from async_rl.config.schema import RunConfig, SftConfig
from async_rl.errors import RunError, UserError
from learner.place import Place

RUN_ERROR, USER_ERROR, INTERRUPTED = 1, 2, 130

MAIN_HELP = """Asynchronous reinforcement learning of language models.

Generators never stop, the learner never waits for them, and no token trains that is older than you allow.

[bold]First steps[/bold]

  [cyan]async-rl sft quickstart-sft[/cyan]           warm-start a small model

  [cyan]async-rl launch quickstart --dry-run[/cyan]  what would run, what is promised

  [cyan]async-rl launch quickstart[/cyan]            train it

  [cyan]async-rl dashboard[/cyan]                    look at the curves

COMMAND --help has examples. A mistake in a config is refused with its value, its place and the remedy (exit code 2).
"""
LAUNCH_HELP = """Train a policy as CONFIG says; KEY=VALUE overrides any option of it.

[bold]Examples[/bold]

  [cyan]async-rl launch run.yaml --dry-run[/cyan]       look before you leap

  [cyan]async-rl launch run.yaml --resume auto[/cyan]   go on from the last checkpoint

  [cyan]async-rl launch run.yaml steps=50 learner.optimizer.lr=1e-4[/cyan]

  [cyan]async-rl launch run.yaml staleness.max=0 staleness.depth=0[/cyan]   synchronous

  [cyan]async-rl launch run.yaml correction=decoupled_token_is[/cyan]   a preset: [cyan]async-rl presets[/cyan]

Ctrl-C finishes the step and writes a checkpoint; a second Ctrl-C stops at once.

Everything that a run writes lies in runs/NAME (and runs/latest): config, logs, metrics, checkpoints, model,
summary.json.

[cyan]async-rl config[/cyan] lists the options.
"""
SFT_HELP = """Fine-tune a model on conversations, or on prompts with their answers; the loss is on the answers only.

[bold]Examples[/bold]

  [cyan]async-rl sft quickstart-sft steps=200 output=models/mine[/cyan]

  [cyan]async-rl sft run.yaml --resume auto[/cyan]      go on from the last checkpoint

  [cyan]torchrun --nproc-per-node 2 -m async_rl.cli sft run.yaml parallel.tp=2[/cyan]   on two ranks

Ctrl-C finishes the step and writes a checkpoint; a second Ctrl-C stops at once.

Then train it: [cyan]async-rl launch quickstart model.path=models/mine[/cyan]
"""
EXPORT_HELP = """Write the model of a CHECKPOINT as a Hugging Face folder.

[bold]Example[/bold]

  [cyan]async-rl export runs/latest/checkpoints/00000100 models/step-100[/cyan]
"""
DASHBOARD_HELP = """Show the curves of all runs in Aim, with panels for learning, staleness and throughput.

It listens on 127.0.0.1 only, since Aim has no login. From another machine, tunnel:
[cyan]ssh -L 43800:127.0.0.1:43800 HOST[/cyan]
"""
CONFIG_HELP = """List the options whose name or effect contains WORD; without it, all.

[bold]Examples[/bold]

  [cyan]async-rl config staleness[/cyan]

  [cyan]async-rl config --sft[/cyan]
"""

PRESETS_HELP = """List the presets of the correction for off-policy data; with NAME, show what one sets.

[bold]Examples[/bold]

  [cyan]async-rl presets decoupled_token_is[/cyan]

  [cyan]async-rl launch run.yaml correction=decoupled_token_is[/cyan]

In a file: [cyan]defaults: \\[run_schema, correction: decoupled_token_is, _self_][/cyan]

What a file sets itself wins over its preset, and an option on the command line over both.
"""

app = typer.Typer(
    help=MAIN_HELP,
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console()
err = Console(stderr=True)

ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a config that comes along.")
]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Options to set, over those of the file.")
]
ResumeOption = Annotated[
    Literal["auto", "never"],
    typer.Option(help="auto: go on from the newest checkpoint of this run; never: an earlier run is set aside."),
]


def main() -> None:
    """The `async-rl` program."""
    try:
        app()
    except UserError as error:
        print_user_error(error)
        sys.exit(USER_ERROR)
    except RunError as error:
        err.print(f"[bold red]The run could not go on:[/bold red] {escape(str(error))}", soft_wrap=True)
        sys.exit(RUN_ERROR)


def print_user_error(error: UserError) -> None:
    """Three lines: what, where, and what to do."""
    err.print(f"[bold red]error:[/bold red]  {escape(error.problem)}", soft_wrap=True)
    err.print(f"[bold]where:[/bold]  {escape(error.place)}", soft_wrap=True)
    err.print(f"[bold green]remedy:[/bold green] {escape(error.remedy)}", soft_wrap=True)


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        words = installed_version("async-rl")
    except PackageNotFoundError:
        words = f"from {Path(__file__).parents[1]}, not installed"
    out.print(f"async-rl {words}", highlight=False, soft_wrap=True)
    raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command(help=LAUNCH_HELP)
def launch(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show config, processes and guarantees; start nothing.")
    ] = False,
    resume: ResumeOption = "never",
    name: Annotated[str | None, typer.Option(help="The run's folder is runs_dir/NAME; as name=NAME.")] = None,
) -> None:
    """Trains, or shows what would be trained."""
    from async_rl.config.compose import load_run_config
    from async_rl.config.rules import check_run
    from async_rl.config.shipped import find_config, shipped_folder

    run = load_run_config(find_config(config, shipped=shipped_folder()), overrides or ())
    if name is not None:
        run = replace(run, name=name)
        check_run(run)
    if dry_run:
        from async_rl.readiness import readiness_of
        from async_rl.sizing.fit import check_fit
        from async_rl.terminal.plan_page import print_plan

        readiness = readiness_of(run)
        print_plan(out, run, cores=sorted(os.sched_getaffinity(0)), readiness=readiness)
        if readiness.sizes is not None:
            check_fit(run, readiness.sizes)
        return
    from async_rl.launch.run import Interrupted
    from async_rl.launch.run import launch as launch_run
    from async_rl.launch.start import Resume
    from async_rl.summary import Exit

    words = ["async-rl", "launch", config, *(overrides or ()), *(["--name", name] if name else []), "--resume", "auto"]
    again = shlex.join(words)
    try:
        end = launch_run(run, resume=Resume(resume), console=out)
    except Interrupted as interrupt:
        _say_how_to_go_on(run, again)
        raise typer.Exit(INTERRUPTED) from interrupt
    except RunError:
        err.print(f"Logs of every process: {Path(run.runs_dir, run.name, 'logs')}", soft_wrap=True, highlight=False)
        _say_how_to_go_on(run, again)
        raise
    if end is Exit.STOPPED:
        _say_how_to_go_on(run, again)
        raise typer.Exit(INTERRUPTED)


def _say_how_to_go_on(run: RunConfig | SftConfig, command: str) -> None:
    from async_rl.checkpoints import Checkpoints
    from async_rl.run_folder import RunFolder

    checkpoint = Checkpoints(RunFolder(Path(run.runs_dir, run.name)).checkpoints, run.checkpoint.keep).latest
    if checkpoint is not None:
        words = f"To go on from version {int(checkpoint.name)}: {command}"
        err.print(words, soft_wrap=True, highlight=False, markup=False)


@app.command(help=SFT_HELP)
def sft(config: ConfigArgument, overrides: OverridesArgument = None, resume: ResumeOption = "never") -> None:
    """Fine-tunes."""
    place = Place.under_torchrun(os.environ)
    try:
        _sft(config, overrides or [], resume, place)
    except (UserError, RunError) as error:
        # Of torchrun's processes, which all end so, one says it.
        if place.rank > 0:
            raise typer.Exit(USER_ERROR if isinstance(error, UserError) else RUN_ERROR) from error
        raise


def _sft(config: str, overrides: list[str], resume: str, place: Place) -> None:
    from async_rl.config.compose import load_sft_config
    from async_rl.config.shipped import find_config, shipped_folder

    run = load_sft_config(find_config(config, shipped=shipped_folder()), overrides)
    from async_rl.launch.sft import launch_sft
    from async_rl.launch.start import Resume
    from async_rl.summary import Exit

    words = shlex.join(["sft", config, *overrides, "--resume", "auto"])
    again = f"async-rl {words}" if place.world_size == 1 else f"torchrun … -m async_rl.cli {words}"
    try:
        end = launch_sft(run, place, resume=Resume(resume), console=out)
    except (KeyboardInterrupt, RunError) as error:
        if place.rank == 0:
            if isinstance(error, RunError):
                err.print(f"The log: {Path(run.runs_dir, run.name, 'logs')}", soft_wrap=True, highlight=False)
            _say_how_to_go_on(run, again)
        raise
    if end is Exit.STOPPED:
        if place.rank == 0:
            _say_how_to_go_on(run, again)
        raise typer.Exit(INTERRUPTED)
    if end is Exit.FAILED:
        raise typer.Exit(RUN_ERROR)


@app.command(help=EXPORT_HELP)
def export(
    checkpoint: Annotated[Path, typer.Argument(help="A folder runs/NAME/checkpoints/VERSION.")],
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="The Hugging Face folder to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is in OUT already.")] = False,
) -> None:
    """Writes a model."""
    from async_rl.launch.export import export_checkpoint

    export_checkpoint(checkpoint, folder, force=force)
    out.print(f"The model is in {folder}", highlight=False, soft_wrap=True)


@app.command(help=DASHBOARD_HELP)
def dashboard(
    repo: Annotated[Path, typer.Option(help="The runs_dir of the runs, or their tracking.aim_repo.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 43800,
) -> None:
    """Serves Aim until Ctrl-C."""
    from async_rl.tracking.dashboard import Dashboard

    # As with Ctrl-C: the server must not outlive the command.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with err.status("starting Aim (about 15 s)"):
        server = Dashboard(repo, port)
    try:
        out.print(f"Dashboard: [link]{server.url}[/link]   (Ctrl-C ends it)", soft_wrap=True)
        server.wait()
    finally:
        server.close()


@app.command("config", help=CONFIG_HELP)
def show_config(
    word: Annotated[str, typer.Argument(help="Part of an option's name or effect.")] = "",
    for_sft: Annotated[bool, typer.Option("--sft", help="The options of `async-rl sft`.")] = False,
) -> None:
    """Lists options."""
    from async_rl.config.tree import RUN, SFT
    from async_rl.terminal.options_page import options_page

    out.print(options_page(SFT if for_sft else RUN, word))


@app.command("presets", help=PRESETS_HELP)
def show_presets(
    name: Annotated[str | None, typer.Argument(help="A preset whose file is shown.")] = None,
) -> None:
    """Lists presets."""
    from async_rl.config.presets import load_presets, preset_file
    from async_rl.terminal.presets_page import presets_page

    if name is None:
        out.print(presets_page(load_presets()))
    else:
        # As text: neither wrapped nor coloured, so that it can be copied into a file.
        out.print(preset_file(name).read_text(encoding="utf-8"), end="", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
