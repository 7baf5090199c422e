"""What tests of shared studies do to workers."""

import threading

import sqlalchemy

from autorecompute.studies.storage import read_trials
from autorecompute.units import MIB

LIMIT = 600 * MIB


def lose_heartbeat(worker):
    """Have no heartbeat of a worker reach the storage for a long time."""
    worker._is_over.set()
    stop = sqlalchemy.text("UPDATE trial_heartbeats SET heartbeat = '2000-01-01 00:00:00' WHERE trial_id = :held")
    with worker._storage.engine.begin() as connection:
        for held in worker._held.values():
            connection.execute(stop, {"held": held})


def die(worker):
    """End a worker as a kill would, a while ago."""
    lose_heartbeat(worker)
    worker._held.clear()


def run_together(works):
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measured(tuning):
    """What the folder of a worker knows of the whole study."""
    return read_trials(tuning.folder.database, tuning.folder.name_in_database)
