"""A Python object that a config names: `module:NAME` or `file.py:NAME`.

Owns finding and importing it. What kind of object it has to be is checked by whoever asks. Imports nothing heavy.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from async_rl.errors import UserError


def load_object(spec: str, *, kind: str, place: str, remedy: str, error: type[UserError]) -> object:
    """What `spec` names; a file is looked up from the working folder, and imported once a process.

    Args:
        spec: `module:NAME` or `file.py:NAME`.
        kind: what it should be, for the message: "reward function".
        place: the option that holds `spec`.
        remedy: what to do if there is no such name.
        error: raised for whatever is wrong with it, an error of the imported code too.
    """
    location, separator, name = spec.rpartition(":")
    if not separator or not location or not name:
        raise error(f"{spec!r} names no {kind}", place=place, remedy=f"give `module:NAME` or `file.py:NAME`; {remedy}")
    if location.endswith(".py") and not Path(location).is_file():
        raise error(f"there is no file {location}", place=place, remedy=f"give a path that exists, from {Path.cwd()}")
    try:
        module = _import_file(Path(location)) if location.endswith(".py") else importlib.import_module(location)
    except Exception as cause:  # the user's code may raise anything while it is imported
        raise error(
            f"{location} does not import: {type(cause).__name__}: {cause}",
            place=place,
            remedy=f"make it import in this environment, or name another {kind}",
        ) from cause
    if name not in vars(module):
        raise error(f"{location} has no {name!r}", place=place, remedy=remedy)
    found: object = vars(module)[name]
    return found


def _import_file(path: Path) -> ModuleType:
    # Named after the whole path, so that it hides neither another file of the same name nor a module.
    name = f"file:{path.resolve()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
