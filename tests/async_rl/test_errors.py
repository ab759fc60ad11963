"""Errors cross process boundaries and say what to do."""

import pickle

import pytest

from async_rl import errors
from async_rl.errors import AsyncRLError, ResourceError, UserError

KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, AsyncRLError)]
USER_KINDS = [k for k in KINDS if issubclass(k, UserError)]


@pytest.mark.parametrize("kind", USER_KINDS)
def test_a_users_mistake_survives_pickling_with_all_its_words(kind: type[UserError]) -> None:
    error = pickle.loads(pickle.dumps(kind("port 5 is taken", place="channel.port", remedy="choose another")))
    assert type(error) is kind
    assert (error.problem, error.place, error.remedy) == ("port 5 is taken", "channel.port", "choose another")


@pytest.mark.parametrize("kind", [k for k in KINDS if not issubclass(k, UserError)])
def test_every_other_error_survives_pickling(kind: type[AsyncRLError]) -> None:
    error = pickle.loads(pickle.dumps(kind("words")))
    assert type(error) is kind and str(error) == "words"


def test_as_text_it_has_three_lines() -> None:
    text = str(ResourceError("the disk is full", place="/runs", remedy="free some"))
    assert text == "the disk is full\n  where:  /runs\n  remedy: free some"


def test_each_kind_stands_in_the_tree_at_the_top_of_the_module() -> None:
    assert errors.__doc__ is not None
    assert all(kind.__name__ in errors.__doc__ for kind in KINDS)
