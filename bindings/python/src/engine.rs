//! Engines and their peers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvrail_bindings::Code;
use kvrail_transfer::{
    Access, ByteRange, Class, Direction, EngineConfig, LeaseRequest, LeaseTicket, MemoryKind, Op, TenantId,
    TransferRequest, TransportKind, active_rdma_rails,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::lease::{Lease, Ticket, access};
use crate::memory::Region;
use crate::pending::{Finish, Pending, seconds};
use crate::raise::{self, Raise};
use crate::transfer::{SomeOps, Transfer, over};

/// The engine of a process: moves bytes between regions here and memory that peers lend.
#[pyclass(module = "kvrail", frozen)]
pub struct Engine(kvrail_transfer::Engine);

/// A ticket, or its bytes.
#[derive(FromPyObject)]
enum SomeTicket<'py> {
    Read(PyRef<'py, Ticket>),
    Bytes(Vec<u8>),
}

/// Keyword arguments of a transfer.
struct Options<'a> {
    direction: &'a str,
    deadline: f64,
    transfer_class: &'a str,
    tenant: u32,
    checksum: Option<bool>,
    notify: Option<Vec<u8>>,
}

/// What a transfer is asked for, read.
struct Asked {
    ticket: LeaseTicket,
    ops: Arc<Vec<Op>>,
    direction: Direction,
    deadline: Duration,
    class: Class,
    tenant: TenantId,
    checksum: Option<bool>,
    notify: Option<Bytes>,
}

impl Asked {
    fn new(py: Python<'_>, ticket: SomeTicket<'_>, ops: SomeOps<'_>, options: Options<'_>) -> PyResult<Self> {
        Ok(Self {
            ticket: match ticket {
                SomeTicket::Read(ticket) => ticket.0.clone(),
                SomeTicket::Bytes(bytes) => LeaseTicket::from_bytes(&bytes).raise(py)?,
            },
            ops: ops.list(),
            direction: direction(options.direction)?,
            deadline: seconds("deadline", options.deadline)?,
            class: class(options.transfer_class)?,
            tenant: TenantId(options.tenant),
            checksum: options.checksum,
            notify: options.notify.map(Bytes::from),
        })
    }

    fn submit(
        &self,
        py: Python<'_>,
        engine: &kvrail_transfer::Engine,
        peer: &kvrail_transfer::Peer,
        region: &Region,
    ) -> PyResult<kvrail_transfer::Transfer> {
        let region = if self.direction == Direction::Read { region.writable()? } else { region.get()? };
        let due = Instant::now().checked_add(self.deadline);
        let request = TransferRequest {
            region: &region,
            ticket: &self.ticket,
            direction: self.direction,
            ops: Arc::clone(&self.ops),
            class: self.class,
            tenant: self.tenant,
            deadline: due.ok_or_else(|| PyValueError::new_err("deadline: past the end of time"))?,
            checksum: self.checksum,
            notify: self.notify.clone(),
        };
        engine.submit(peer, request).raise(py)
    }
}

/// A transfer that is done as often as wanted. It keeps its peer and its region's handle.
#[pyclass(module = "kvrail", frozen)]
pub struct Prepared {
    engine: kvrail_transfer::Engine,
    peer: kvrail_transfer::Peer,
    region: Py<Region>,
    asked: Asked,
}

#[pymethods]
impl Prepared {
    /// As `Engine.submit`.
    fn submit(&self, py: Python<'_>) -> PyResult<Transfer> {
        self.asked.submit(py, &self.engine, &self.peer, self.region.get()).map(Transfer::new)
    }

    /// Submits it and blocks until it has ended, other threads running meanwhile: its report, or an exception that has it. One call,
    /// which a transfer of a few KiB feels. Ctrl-C cancels it.
    fn transfer(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        over(py, self.asked.submit(py, &self.engine, &self.peer, self.region.get())?)
    }

    fn __repr__(&self) -> String {
        format!("<kvrail.Prepared: {} descriptors>", self.asked.ops.len())
    }
}

/// Settings that are taken over where they are given.
macro_rules! settings {
    ($config:ident, $($field:ident),*) => {
        $(if let Some(value) = $field { $config.$field = value; })*
    };
}

fn transport(name: &str) -> PyResult<TransportKind> {
    match name {
        "shm" => Ok(TransportKind::Shm),
        "tcp" => Ok(TransportKind::Tcp),
        "rdma" => Ok(TransportKind::Rdma),
        other => Err(PyValueError::new_err(format!("transports: {other:?} is none of \"shm\", \"rdma\" and \"tcp\""))),
    }
}

fn class(name: &str) -> PyResult<Class> {
    match name {
        "kv" => Ok(Class::KvHandoff),
        "control" => Ok(Class::Control),
        "replication" => Ok(Class::Replication),
        "weights" => Ok(Class::Weights),
        other => Err(PyValueError::new_err(format!("transfer_class: {other:?} is none"))),
    }
}

fn direction(name: &str) -> PyResult<Direction> {
    match name {
        "write" => Ok(Direction::Write),
        "read" => Ok(Direction::Read),
        other => Err(PyValueError::new_err(format!("direction: {other:?} is neither \"write\" nor \"read\""))),
    }
}

/// The RDMA NICs of this machine with an active port, as `rdma_rails` names them; none where there is no libibverbs.
#[pyfunction]
pub fn rdma_nics(py: Python<'_>) -> Vec<String> {
    py.detach(|| active_rdma_rails().iter().map(ToString::to_string).collect())
}

#[pymethods]
impl Engine {
    /// Starts an engine. Times are seconds.
    #[new]
    #[pyo3(signature = (*, listen=None, transports=None, tcp_rails=None, rdma_rails=None, streams_per_peer=None, workers=None,
        checksum=None, guard_leases=None, heartbeat=None, peer_timeout=None, connect_timeout=None, peers_max=None, leases_max=None, transfers_max=None,
        notifications_max=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        listen: Option<&str>,
        transports: Option<Vec<String>>,
        tcp_rails: Option<Vec<String>>,
        rdma_rails: Option<Vec<String>>,
        streams_per_peer: Option<u8>,
        workers: Option<usize>,
        checksum: Option<bool>,
        guard_leases: Option<bool>,
        heartbeat: Option<f64>,
        peer_timeout: Option<f64>,
        connect_timeout: Option<f64>,
        peers_max: Option<usize>,
        leases_max: Option<usize>,
        transfers_max: Option<usize>,
        notifications_max: Option<usize>,
    ) -> PyResult<Self> {
        let mut config = EngineConfig::default();
        let wrong = |name: &str, what: String| raise::error(py, Code::Config, &format!("setting {name}: {what}"));
        if let Some(text) = listen {
            config.listen = text.parse().map_err(|_| wrong("listen", "must be ADDRESS:PORT".into()))?;
        }
        if let Some(names) = transports {
            config.transports = names.iter().map(|name| transport(name)).collect::<PyResult<_>>()?;
        }
        for text in tcp_rails.into_iter().flatten() {
            config.tcp_rails.push(text.parse().map_err(|e| wrong("tcp_rails", format!("{e}")))?);
        }
        for text in rdma_rails.into_iter().flatten() {
            config.rdma_rails.push(text.parse().map_err(|e| wrong("rdma_rails", format!("{e}")))?);
        }
        let duration = |name, value: Option<f64>| value.map(|value| seconds(name, value)).transpose();
        let heartbeat = duration("heartbeat", heartbeat)?;
        let peer_timeout = duration("peer_timeout", peer_timeout)?;
        let connect_timeout = duration("connect_timeout", connect_timeout)?;
        settings!(config, streams_per_peer, workers, checksum, guard_leases, heartbeat, peer_timeout, connect_timeout);
        settings!(config, peers_max, leases_max, transfers_max, notifications_max);
        kvrail_transfer::Engine::start(config).raise(py).map(Self)
    }

    /// Where peers connect to, ADDRESS:PORT.
    #[getter]
    fn address(&self) -> String {
        self.0.local_addr().to_string()
    }

    /// Random number of this start; after a restart it is another.
    #[getter]
    fn generation(&self) -> u64 {
        self.0.generation()
    }

    /// Maps zeroed memory: a memfd that peers on the same host can map, or with `shared=False` private memory.
    #[pyo3(signature = (length, *, shared=true))]
    fn allocate(&self, py: Python<'_>, length: usize, shared: bool) -> PyResult<Region> {
        let kind = if shared { MemoryKind::Shared } else { MemoryKind::Host };
        self.0.allocate(length, kind).raise(py).map(Region::allocated)
    }

    /// A region over memory that the caller has: a NumPy array, a torch tensor on the CPU, a bytearray, an mmap. Nothing is
    /// copied. The object is kept for as long as an engine may touch its memory.
    fn register(&self, py: Python<'_>, memory: Py<PyAny>) -> PyResult<Region> {
        let described = py.import("kvrail._memory")?.call_method1("describe", (memory,))?;
        let (address, length, readonly, owner) = described.extract::<(usize, usize, bool, Py<PyAny>)>()?;
        Region::registered(py, address, length, readonly, owner)
    }

    /// The same of bare memory, with the object that keeps it, if there is one. Without one it must stay until `unregister` of the
    /// region has its result.
    #[pyo3(signature = (address, length, owner=None, *, readonly=false))]
    fn register_pointer(
        &self,
        py: Python<'_>,
        address: usize,
        length: usize,
        owner: Option<Py<PyAny>>,
        readonly: bool,
    ) -> PyResult<Region> {
        Region::registered(py, address, length, readonly, owner.unwrap_or_else(|| py.None()))
    }

    /// Lends ranges of a region, `(offset, length)` each, or all of it, for `ttl` seconds.
    #[pyo3(signature = (region, ranges=None, *, access="write", ttl=30.0))]
    fn grant(
        &self,
        py: Python<'_>,
        region: &Region,
        ranges: Option<Vec<(u64, u64)>>,
        access: &str,
        ttl: f64,
    ) -> PyResult<Lease> {
        let access = self::access(access)?;
        let region = if access == Access::Write { region.writable()? } else { region.get()? };
        let ranges = ranges.unwrap_or_else(|| vec![(0, region.len() as u64)]);
        let ranges = ranges.into_iter().map(|(offset, len)| ByteRange { offset, len }).collect();
        let request = LeaseRequest { region: &region, ranges, access, ttl: seconds("ttl", ttl)? };
        self.0.grant(request).raise(py).map(Lease::new)
    }

    /// Connects to the engine at ADDRESS:PORT, or finds the session that is there: the result is a `Peer`.
    #[pyo3(signature = (address, generation=None))]
    fn connect(&self, py: Python<'_>, address: &str, generation: Option<u64>) -> PyResult<Pending> {
        let wrong = |_| PyValueError::new_err(format!("address: {address:?} is not ADDRESS:PORT"));
        let (engine, address) = (self.0.clone(), address.parse().map_err(wrong)?);
        Ok(Pending::begun(py, async move {
            let connected = engine.connect(address, generation).await;
            Box::new(move |py: Python<'_>| Ok(Py::new(py, Peer(connected.raise(py)?))?.into_any())) as Finish
        }))
    }

    /// Accepts a transfer, or refuses it; never blocks. `ops` are an `Ops`, or `(local offset, remote offset, length)` each;
    /// `deadline` is seconds from now.
    #[pyo3(signature = (peer, region, ticket, ops, *, direction="write", deadline=10.0, transfer_class="kv", tenant=0,
        checksum=None, notify=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn submit(
        &self,
        py: Python<'_>,
        peer: &Peer,
        region: &Region,
        ticket: SomeTicket<'_>,
        ops: SomeOps<'_>,
        direction: &str,
        deadline: f64,
        transfer_class: &str,
        tenant: u32,
        checksum: Option<bool>,
        notify: Option<Vec<u8>>,
    ) -> PyResult<Transfer> {
        let options = Options { direction, deadline, transfer_class, tenant, checksum, notify };
        Asked::new(py, ticket, ops, options)?.submit(py, &self.0, &peer.0, region).map(Transfer::new)
    }

    /// A transfer that is done many times: what `submit` takes is read once. `deadline` is seconds from each submission.
    #[pyo3(signature = (peer, region, ticket, ops, *, direction="write", deadline=10.0, transfer_class="kv", tenant=0,
        checksum=None, notify=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn prepare(
        &self,
        py: Python<'_>,
        peer: &Peer,
        region: Py<Region>,
        ticket: SomeTicket<'_>,
        ops: SomeOps<'_>,
        direction: &str,
        deadline: f64,
        transfer_class: &str,
        tenant: u32,
        checksum: Option<bool>,
        notify: Option<Vec<u8>>,
    ) -> PyResult<Prepared> {
        let options = Options { direction, deadline, transfer_class, tenant, checksum, notify };
        let asked = Asked::new(py, ticket, ops, options)?;
        Ok(Prepared { engine: self.0.clone(), peer: peer.0.clone(), region, asked })
    }

    /// The next notification of a peer.
    fn notification(&self) -> Pending {
        let notifications = self.0.notifications();
        Pending::new(async move {
            let notification = notifications.recv().await;
            Box::new(move |py: Python<'_>| Ok(Py::new(py, Notification(notification))?.into_any())) as Finish
        })
    }

    /// The oldest notification, if one is there.
    fn try_notification(&self) -> Option<Notification> {
        self.0.notifications().try_recv().map(Notification)
    }

    /// Counts of what the engine holds and has done.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let text = serde_json::to_string(&self.0.stats()).map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(py.import("json")?.call_method1("loads", (text,))?.unbind())
    }

    /// Ends sessions, transfers and threads; the result is there when what was lent is fenced.
    fn shutdown(&self, py: Python<'_>) -> Pending {
        let engine = self.0.clone();
        Pending::begun(py, async move {
            engine.shutdown().await;
            Box::new(|py: Python<'_>| Ok(py.None())) as Finish
        })
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.shutdown(py).within(py, Some(SHUTDOWN_MAX.as_secs_f64())).map(drop)
    }

    fn __repr__(&self) -> String {
        format!("<kvrail.Engine at {}>", self.0.local_addr())
    }
}

/// Longest that leaving a `with` block waits for an engine's end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

/// A connected engine.
#[pyclass(module = "kvrail", frozen)]
pub struct Peer(kvrail_transfer::Peer);

#[pymethods]
impl Peer {
    /// Random number of the remote engine's start.
    #[getter]
    fn generation(&self) -> u64 {
        self.0.generation()
    }

    /// Where it was reached, or where it came from.
    #[getter]
    fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// Whether the session still stands; one that is gone stays gone.
    #[getter]
    fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// A result when the session is over.
    fn lost(&self) -> Pending {
        let peer = self.0.clone();
        Pending::new(async move {
            peer.lost().await;
            Box::new(|py: Python<'_>| Ok(py.None())) as Finish
        })
    }

    fn __repr__(&self) -> String {
        let state = if self.0.is_alive() { "alive" } else { "gone" };
        format!("<kvrail.Peer at {}, {state}>", self.0.address())
    }
}

/// A peer's word that a transfer's bytes are visible here.
#[pyclass(module = "kvrail", frozen)]
pub struct Notification(kvrail_transfer::Notification);

#[pymethods]
impl Notification {
    /// Generation of the engine that sent it.
    #[getter]
    fn sender(&self) -> u64 {
        self.0.from
    }

    /// What it says.
    #[getter]
    fn payload<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.payload)
    }
}
