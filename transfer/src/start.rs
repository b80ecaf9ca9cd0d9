//! Starting an engine: checks, sockets, threads.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use crate::config::EngineConfig;
use crate::core::{Core, STREAMS_MAX};
use crate::engine::EngineError;
use crate::mailbox::Mailbox;
use crate::session::TCP_RAILS_MAX;
use crate::session::control::{Control, Own};
use crate::session::parts::transport_bit;
use crate::session::ports::Ports;
use crate::session::rails::FarRail;
use crate::session::wire::{HostId, Identity};
use crate::transport::sys::Poller;
use crate::transport::{TransportKind, rdma, shm, sim, tcp};
use crate::worker::{self, Worker};

fn os(what: &'static str) -> impl FnOnce(io::Error) -> EngineError {
    move |source| EngineError::Os { what, source }
}

fn check(config: &EngineConfig) -> Result<(), EngineError> {
    let wrong = |name, reason| Err(EngineError::Config { name, reason });
    if config.transports.is_empty() {
        return wrong("transports", "none is given");
    }
    if config.transports.contains(&TransportKind::Sim) && config.fabric.is_none() {
        return wrong("fabric", "the simulated transport needs one");
    }
    if !(1..=STREAMS_MAX).contains(&config.streams_per_peer) {
        return wrong("streams_per_peer", "must be 1 to 32");
    }
    if !(1..=usize::from(STREAMS_MAX)).contains(&config.workers) {
        return wrong("workers", "must be 1 to 32");
    }
    if config.tcp_rails.len() > TCP_RAILS_MAX {
        return wrong("tcp_rails", "at most 32");
    }
    if config.tcp_rails.iter().any(|rail| rail.address.is_unspecified()) {
        return wrong("tcp_rails", "an address of this machine is wanted, not all of them");
    }
    if config.rdma_rails.len() > TCP_RAILS_MAX {
        return wrong("rdma_rails", "at most 32");
    }
    if config.tenant_weights.len() > 1024 || config.tenant_weights.iter().any(|(_, weight)| *weight == 0) {
        return wrong("tenant_weights", "at most 1024, none of them zero");
    }
    if let Some(name) = &config.tcp_congestion {
        let taken = tcp::socket(config.listen).and_then(|socket| socket.set_tcp_congestion(name.as_bytes()));
        if taken.is_err() {
            return wrong("tcp_congestion", "the system has none of that name");
        }
    }
    if config.heartbeat.is_zero() || config.peer_timeout < config.heartbeat * 2 {
        return wrong("peer_timeout", "must be at least two heartbeats");
    }
    if config.connect_timeout.is_zero() {
        return wrong("connect_timeout", "must not be zero");
    }
    Ok(())
}

/// This boot of this host, and this process's user.
fn host_id() -> HostId {
    let mut boot = [0; 16];
    if let Ok(text) = std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        for (byte, pair) in boot.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok()).unwrap_or(0);
        }
    } else {
        // Unknown: equal to nobody's.
        boot = crate::random::token();
    }
    HostId { boot, user: rustix::process::geteuid().as_raw() }
}

pub(crate) fn start(config: EngineConfig) -> Result<Arc<Core>, EngineError> {
    check(&config)?;
    let listener = TcpListener::bind(config.listen).map_err(os("binding the listener"))?;
    listener.set_nonblocking(true).map_err(os("binding the listener"))?;
    let local_addr = listener.local_addr().map_err(os("binding the listener"))?;
    let mut listeners = vec![listener];
    let mut rails = Vec::new();
    for rail in config.tcp_rails.iter().filter(|_| config.transports.contains(&TransportKind::Tcp)) {
        let listener = tcp::listen(rail).map_err(os("binding the listener of a rail"))?;
        let address = listener.local_addr().map_err(os("binding the listener of a rail"))?;
        rails.push(FarRail { address, prefix: rail.prefix, rail: rail.rail });
        listeners.push(listener);
    }
    let unix = if config.transports.contains(&TransportKind::Shm) {
        Some(shm::listen().map_err(os("binding the shared-memory listener"))?)
    } else {
        None
    };
    let (control_poller, control_waker) = Poller::new().map_err(os("making a poller"))?;
    let (mut pollers, mut handles) = (Vec::new(), Vec::new());
    for index in 0..config.workers {
        let (poller, waker) = Poller::new().map_err(os("making a poller"))?;
        pollers.push(poller);
        handles.push(worker::Handle::new(waker, index, config.workers));
    }
    let nics = if config.transports.contains(&TransportKind::Rdma) {
        let all = rdma::Nic::open_all(&config.rdma_rails)?;
        let clerk = rdma::Clerk::start(&all).map_err(os("starting a thread"))?;
        Some(rdma::Nics { all, clerk })
    } else {
        None
    };
    let fabric = config.fabric.clone().filter(|_| config.transports.contains(&TransportKind::Sim));
    let transports = config.transports.iter().fold(0, |bits, kind| bits | transport_bit(*kind));
    let streams = config.streams_per_peer;
    let ports = Ports::new(config.tenant_weights.clone(), config.peer_timeout, control_waker.clone());
    let core = Core::new(config, local_addr, handles, Mailbox::new(control_waker));
    let me = Identity { generation: core.generation, host: host_id(), port: local_addr.port(), transports, streams };
    let nic =
        fabric.map(|fabric| sim::Nic::open(&fabric, core.generation)).transpose().map_err(os("starting a thread"))?;
    let own = Own { nic, nics, rails };
    let control = Control::new(Arc::clone(&core), control_poller, listeners, unix, own, me, ports)
        .map_err(os("making a poller"))?;
    for (index, poller) in pollers.into_iter().enumerate() {
        let worker = Worker::new(Arc::clone(&core), core.workers[index].rails, poller);
        let engine = Arc::clone(&core);
        spawn(&core, format!("kvrail-move-{index}"), move || engine.workers[index].run(worker))?;
    }
    spawn(&core, "kvrail-control".into(), move || control.run())?;
    Ok(core)
}

fn spawn(core: &Core, name: String, body: impl FnOnce() + Send + 'static) -> Result<(), EngineError> {
    let thread = std::thread::Builder::new().name(name).spawn(|| {
        crate::urgent();
        body();
    });
    thread.map(drop).map_err(|source| {
        core.stop();
        EngineError::Os { what: "starting a thread", source }
    })
}
