"""Both ends of a run's transport, chosen by its config and by what a manifest says."""

from pathlib import Path

import msgspec
import pytest

from async_rl.config.loop import Transport, WeightsConfig
from async_rl.errors import WeightsError
from async_rl.weights.transports import AnyWeightSubscriber, open_publisher, remove_published, version_folder
from tests.async_rl.weights.weights import assert_same, weights


@pytest.mark.parametrize("transport", Transport)
def test_what_one_end_publishes_the_other_receives(tmp_path: Path, transport: Transport) -> None:
    config = WeightsConfig(transport=transport)
    publisher = open_publisher(config, run_id="test-transports", run_folder=tmp_path)
    subscriber = AnyWeightSubscriber()
    try:
        manifest = publisher.publish(3, weights(3))
        assert manifest.transport == transport
        assert_same(subscriber.receive(manifest), weights(3))
        with pytest.raises(WeightsError, match="travels by pigeon"):
            subscriber.receive(msgspec.structs.replace(manifest, transport="pigeon"))
        remove_published(config, run_id="test-transports", run_folder=tmp_path)
        with pytest.raises(WeightsError, match="is gone from"):
            subscriber.receive(manifest)
    finally:
        subscriber.close()
        publisher.close()


def test_files_lie_in_a_folder_of_the_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine"
    assert version_folder(WeightsConfig(), run) == run / "weights"
    assert version_folder(WeightsConfig(folder=str(tmp_path / "fast")), run) == tmp_path / "fast" / "mine"
