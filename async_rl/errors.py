"""The errors of async-rl: what a user can mend, and what ended a run.

    AsyncRLError
    ├── UserError (ValueError)       a value, its place and the remedy; exit code 2, no traceback
    │   ├── ConfigError              an option, an override or a YAML file
    │   ├── DataError                a data set, a task or a tokenizer
    │   ├── ModelError               a model folder or an unsupported architecture
    │   ├── RewardError              a reward function that cannot be used, or what it returned
    │   └── ResourceError            a port, /dev/shm, a folder or a disk
    │       └── DamagedCheckpoint    a file of a checkpoint that is not what was written
    └── RunError (RuntimeError)      a run that could not go on; exit code 1
        ├── ChannelError             a peer that refused us, or that we refused
        ├── WeightsError             a published version that cannot be read whole
        └── NonFiniteError           more skipped steps than `learner.max_skipped` allows

Every error survives pickling, since Ray carries it from a process to the driver.
"""


class AsyncRLError(Exception):
    """Root of every error that async-rl raises on purpose."""


class UserError(AsyncRLError, ValueError):
    """A mistake that the user can mend: says the value, the place and the remedy."""

    def __init__(self, problem: str, *, place: str, remedy: str) -> None:
        super().__init__(problem, place, remedy)
        self.problem = problem
        self.place = place
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n  where:  {self.place}\n  remedy: {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.problem, self.place, self.remedy)


def _rebuild(kind: type[UserError], problem: str, place: str, remedy: str) -> UserError:
    return kind(problem, place=place, remedy=remedy)


class ConfigError(UserError):
    """An option, an override or a YAML file is wrong."""


class DataError(UserError):
    """A data set, a task or a tokenizer is missing or malformed."""


class ModelError(UserError):
    """A model folder cannot be read, or its architecture is not supported."""


class RewardError(UserError):
    """A reward function cannot be imported or called, always ends its process, or returned what is no reward."""


class ResourceError(UserError):
    """The machine lacks something: a port, shared memory, a folder, disk space."""


class DamagedCheckpoint(ResourceError):
    """A file of a checkpoint is missing, cut, or not what was written."""


class RunError(AsyncRLError, RuntimeError):
    """A run cannot go on."""


class ChannelError(RunError):
    """A peer refused us, or sent what cannot be accepted."""


class WeightsError(RunError):
    """A published version cannot be read whole; it is never activated."""


class NonFiniteError(RunError):
    """Loss or gradients were not finite in more steps than `learner.max_skipped`."""
