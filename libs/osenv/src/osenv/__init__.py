"""The one door to the operating system: time, files and random numbers, each real and simulated.

Everything that decides takes these as arguments. The same production code then runs on a real machine, or in a test
that moves the clock by thirty minutes and pulls the plug on the disk.
"""

from osenv.clock import Alarm, Clock, RealClock, Timer, until
from osenv.disk import Disk, DiskFile, DiskUsage, FileLock, Lane, RealDisk, SyncError, replace_file
from osenv.pooled_files import PooledFile, PooledFiles
from osenv.rng import Rng, SeededRng, SystemRng
from osenv.sim_clock import SimClock
from osenv.sim_disk import SimDisk

__all__ = [
    "Alarm",
    "Clock",
    "Disk",
    "DiskFile",
    "DiskUsage",
    "FileLock",
    "Lane",
    "PooledFile",
    "PooledFiles",
    "RealClock",
    "RealDisk",
    "Rng",
    "SeededRng",
    "SimClock",
    "SimDisk",
    "SyncError",
    "SystemRng",
    "Timer",
    "replace_file",
    "until",
]
