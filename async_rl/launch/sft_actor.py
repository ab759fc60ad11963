"""One rank of a fine-tuning as a Ray actor, which takes calls while it trains.

Heavy imports stand inside the method, as in `actors`.
"""

import os
import queue
import threading
from pathlib import Path

from async_rl.config.schema import SftConfig
from async_rl.launch.actors import free_address
from async_rl.launch.process import set_up_process
from async_rl.summary import Exit
from learner.place import Place
from learner.sft_events import SftEvent
from learner.sft_start import SftStart

NUM_THREADS = 3
"""One trains; one tells what happens, and one hears that it is to stop."""
NEWS_TIMEOUT_S = 1.0


class SftActor:
    """`run` returns after the last checkpoint and the export; the other methods answer meanwhile."""

    def __init__(
        self, config: SftConfig, *, rank: int, cores: list[int] | None, start: SftStart, directory: Path
    ) -> None:
        set_up_process(f"rank-{rank}", start.folder.logs, cores=cores)
        os.environ["OMP_NUM_THREADS"] = str(config.num_threads)
        # Paths of the config count from where the command was given.
        os.chdir(directory)
        self._config = config
        self._rank = rank
        self._start = start
        self._news: queue.SimpleQueue[SftEvent | Exit] = queue.SimpleQueue()
        self._is_stopping = threading.Event()
        self._wishes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def meeting_place(self) -> str:
        """Where the ranks can find each other."""
        return free_address()

    def run(self, *, rendezvous: str, world_size: int) -> None:
        """Trains."""
        from learner.megatron.runtime import Ground
        from learner.sft_process import run_sft

        config = self._config
        place = Place(rank=self._rank, world_size=world_size, rendezvous=rendezvous)
        with Ground(config.parallel, place, seed=config.seed, num_threads=config.num_threads) as ground:
            exit_ = run_sft(
                config,
                self._start,
                ground,
                place,
                tell=self._news.put,
                is_stopping=self._is_stopping.is_set,
                wants_checkpoint=self._take_wish,
            )
        self._news.put(exit_)

    def news(self) -> list[SftEvent | Exit]:
        """What has happened since the last call, at the end how it ended; waits for something, but not for long."""
        try:
            news = [self._news.get(timeout=NEWS_TIMEOUT_S)]
        except queue.Empty:
            return []
        while not self._news.empty():
            news.append(self._news.get_nowait())
        return news

    def stop(self) -> None:
        """Asks for an end after the step; of one rank is enough."""
        self._is_stopping.set()

    def checkpoint(self) -> None:
        """Asks for one after the step; of one rank is enough."""
        self._wishes.put(None)

    def _take_wish(self) -> bool:
        if self._wishes.empty():
            return False
        self._wishes.get()
        return True
