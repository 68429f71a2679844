"""Database, broker and clock in memory, for tests without servers: `docs/simulation.md`."""

from chain_kernel.testing.memory_chain import LinkDial as LinkDial
from chain_kernel.testing.memory_chain import LossyLink as LossyLink
from chain_kernel.testing.memory_log import MemoryFrameSink as MemoryFrameSink
from chain_kernel.testing.memory_log import MemoryFrameSource as MemoryFrameSource
from chain_kernel.testing.memory_log import MemoryLog as MemoryLog
from chain_kernel.testing.memory_receiver import MemoryCheckpointStore as MemoryCheckpointStore
from chain_kernel.testing.memory_receiver import MemoryGapSource as MemoryGapSource
from chain_kernel.testing.memory_store import MemoryChainStore as MemoryChainStore
from chain_kernel.testing.memory_store import MemoryDatabase as MemoryDatabase
from chain_kernel.testing.memory_store import MemoryKeyStore as MemoryKeyStore
from chain_kernel.testing.memory_store import MemoryLease as MemoryLease
from chain_kernel.testing.virtual_loop import run_virtual as run_virtual
from chain_kernel.testing.virtual_loop import virtual_clock as virtual_clock
from matcher_receiver.testing import MemoryChain as MemoryChain
