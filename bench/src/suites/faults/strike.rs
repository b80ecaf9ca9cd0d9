//! The moment, the blow, and whether it hit.
//!
//! A blow counts if its victim was seen at work immediately before, and if those who depended on the victim were seen to
//! notice afterwards: between a look at a `/status` and a signal there are milliseconds in which work can end.

use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;

use super::load::Stream;
use crate::cluster::{Cluster, Process, Role, Signal};

/// How long a frozen process stays frozen.
pub(super) const FROZEN: Duration = Duration::from_secs(10);
/// How long a moment is waited for.
const MOMENT_MAX: Duration = Duration::from_secs(5);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(3);
/// The blow falls up to this long after the first moment that would do, so that all phases of the work are met.
const DWELL_MS: u64 = 60;
/// By when a dead process is noticed: its sockets break at once.
const NOTICED: Duration = Duration::from_secs(2);
/// By when a frozen one is: silence has to last. It is still frozen then.
const FROZEN_NOTICED: Duration = Duration::from_secs(9);
/// Streams that must be in the middle of their answers where a blow concerns them all.
const ANSWERING: usize = 3;

/// What is done to the cluster while it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    KillPrefill,
    KillDecode,
    FreezePrefill,
    KillConductor,
    KillGateway,
    Disconnect,
}

impl Fault {
    pub(super) const ALL: [Self; 6] = [
        Self::KillPrefill,
        Self::KillDecode,
        Self::FreezePrefill,
        Self::KillConductor,
        Self::KillGateway,
        Self::Disconnect,
    ];

    /// Who is killed, and has to be started again.
    pub(super) fn kills(self) -> Option<Role> {
        match self {
            Self::KillPrefill => Some(Role::Prefill),
            Self::KillDecode => Some(Role::Decode),
            Self::KillConductor => Some(Role::Conductor),
            Self::KillGateway => Some(Role::Gateway),
            Self::FreezePrefill | Self::Disconnect => None,
        }
    }

    /// The process that is struck.
    pub(super) fn victim(self, cluster: &Cluster, index: usize) -> Option<&Process> {
        match self {
            Self::KillPrefill | Self::FreezePrefill => cluster.prefill.get(index),
            Self::KillDecode => cluster.decode.get(index),
            Self::KillConductor => Some(&cluster.conductor),
            Self::KillGateway => Some(&cluster.gateway),
            Self::Disconnect => None,
        }
    }
}

/// Waits for a moment in which the victim is in the middle of its work; false if none came.
///
/// # Errors
/// A process that does not tell its status.
pub(super) async fn moment(
    cluster: &Cluster,
    fault: Fault,
    victim: usize,
    streams: &[Stream],
    rng: &mut SmallRng,
) -> Result<bool, String> {
    let until = Instant::now() + MOMENT_MAX;
    let mut dwell = Some(Duration::from_millis(rng.random_range(0..DWELL_MS)));
    while Instant::now() < until && !streams.iter().all(Stream::is_over) {
        if !at_work(cluster, fault, victim, streams).await? {
            tokio::time::sleep(LOOK).await;
        } else if let Some(dwell) = dwell.take() {
            tokio::time::sleep(dwell).await;
        } else {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn at_work(cluster: &Cluster, fault: Fault, victim: usize, streams: &[Stream]) -> Result<bool, String> {
    let requests = async |node: &Process, state: &str| {
        let status = cluster.status(node).await?;
        status["requests"][state].as_u64().ok_or_else(|| format!("{} tells no `{state}`: {status}", node.name))
    };
    let answering = streams.iter().filter(|s| s.is_answering()).count();
    Ok(match fault {
        Fault::KillPrefill | Fault::FreezePrefill => requests(&cluster.prefill[victim], "computing").await? > 0,
        Fault::KillDecode => requests(&cluster.decode[victim], "decode").await? > 0,
        Fault::KillConductor | Fault::KillGateway => answering >= ANSWERING,
        // Some leave while they wait, some in mid-answer, and some stay.
        Fault::Disconnect => answering > ANSWERING && streams.iter().any(Stream::is_waiting),
    })
}

/// Does it to a process.
pub(super) fn strike(fault: Fault, process: &Process) {
    process.signal(if fault == Fault::FreezePrefill { Signal::Stop } else { Signal::Kill });
}

/// What the others have counted of the victim's absence, so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noticed(f64);

impl Noticed {
    /// Reads the counter that shows `fault`.
    ///
    /// # Errors
    /// A process that does not tell.
    pub(super) async fn now(cluster: &Cluster, fault: Fault) -> Result<Self, String> {
        let gateway = &cluster.gateway;
        Ok(Self(match fault {
            Fault::KillPrefill | Fault::FreezePrefill => {
                let mut failures = 0;
                for node in &cluster.decode {
                    let status = cluster.status(node).await?;
                    failures += status["requests"]["prefill_failures"].as_u64().ok_or("no count of failures")?;
                }
                failures as f64
            }
            Fault::KillDecode => cluster.metric(gateway, "kvrail_gateway_migrations_total", "").await?,
            Fault::KillConductor => cluster.metric(gateway, "kvrail_gateway_route_fallbacks_total", "").await?,
            Fault::Disconnect => {
                cluster.metric(gateway, "kvrail_gateway_requests_ended_total", "outcome=\"client_gone\"").await?
            }
            // It is the one that counted.
            Fault::KillGateway => 0.0,
        }))
    }

    /// Waits until the counter has risen by `by`; how far it has.
    ///
    /// # Errors
    /// A process that does not tell.
    pub(super) async fn rises(self, cluster: &Cluster, fault: Fault, by: usize) -> Result<usize, String> {
        let limit = if fault == Fault::FreezePrefill { FROZEN_NOTICED } else { NOTICED };
        let until = Instant::now() + limit;
        loop {
            let risen = (Self::now(cluster, fault).await?.0 - self.0) as usize;
            if risen >= by || Instant::now() >= until {
                return Ok(risen);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
