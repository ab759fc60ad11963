"""How tests read the names that a generator gives its requests."""


def index_of(request_id: str) -> int:
    """Which sample of its group a request is."""
    return int(request_id.split(".")[2])
