"""A warm start while it goes on: a progress bar on a terminal, plain lines elsewhere."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY = 20
"""Steps between two lines where there is no terminal."""


class SftView:
    """Shows steps and validation losses; opened by the first step, closed by `close`."""

    def __init__(self, console: Console, *, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._progress = Progress(
            TextColumn("warm start"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=steps, words="")
        self._validation = ""

    def say(self, message: str) -> None:
        """Prints something that the user should read."""
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def stepped(self, step: int, *, loss: float, lr: float, tokens_per_s: float) -> None:
        """An optimizer step is done."""
        words = f"loss {loss:.4f}  lr {lr:.1e}  {tokens_per_s:.0f} tok/s"
        if self._console.is_terminal:
            self._progress.start()
            self._progress.update(self._task, completed=step, words=f"{words}{self._validation}")
        elif step % LINE_EVERY == 0 or step == self._steps:
            self._console.print(f"step {step}/{self._steps}  {words}", highlight=False, soft_wrap=True)

    def validated(self, step: int, loss: float) -> None:
        """The loss on held-out pairs."""
        self._validation = f"  validation {loss:.4f}"
        if not self._console.is_terminal:
            self._console.print(f"step {step}/{self._steps}  validation loss {loss:.4f}", highlight=False)

    def close(self) -> None:
        """Leaves the bar standing. May be called twice."""
        self._progress.stop()
