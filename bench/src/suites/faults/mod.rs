//! Faults under load: whatever dies on the way, no stream that lives gets a wrong, lost or repeated token, every request
//! ends within its deadline, nothing leaks, and the survivors go on serving.
//!
//! Every round asks questions that no node has seen, so that there is work to strike; it strikes when the victim is seen to
//! be in the middle of it, and counts only if the others were then seen to notice.
//!
//! Map: `drill` one fault, round after round · `strike` the moment, the blow, and whether it hit · `load` the requests in
//! flight · `settled` counters that return to zero · `footprint` files, sockets and mappings that do.

mod drill;
mod footprint;
mod load;
mod settled;
mod strike;

use std::sync::{Mutex, PoisonError};

use super::{Findings, Setting, Tier};
use crate::answer::{Answer, Ask, ask};
use crate::cluster::{Cluster, Plan};
use drill::Drill;
use strike::Fault;

/// Runs every fault over tcp and over shm.
pub async fn run(setting: &Setting) -> Findings {
    let mut findings = Findings::default();
    let rounds = if setting.tier == Tier::Quick { 2 } else { 20 };
    let reference = match Reference::start(setting).await {
        Ok(reference) => reference,
        Err(e) => {
            findings.failure(format!("colocated run: {e}"));
            return findings;
        }
    };
    let noted = Mutex::new(findings);
    let run = async |fault: Fault, transport: &str| {
        let mut drill = Drill::new(setting, &reference, fault, transport);
        let result = drill.run(rounds).await;
        let mut findings = noted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(e) = result {
            findings.failure(format!("{fault:?} over {transport}: {e}"));
        }
        findings.figure(format!("{fault:?} over {transport}"), drill.tally);
    };
    for transport in ["tcp", "shm"] {
        let others = async {
            for fault in Fault::ALL.into_iter().filter(|f| *f != Fault::FreezePrefill) {
                run(fault, transport).await;
            }
        };
        // It mostly waits: the others, on clusters of their own, are what the machine does meanwhile.
        tokio::join!(run(Fault::FreezePrefill, transport), others);
    }
    noted.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What the right answers are: those of one process that computes everything itself, and takes no time for it.
struct Reference {
    cluster: Cluster,
    model: String,
}

impl Reference {
    async fn start(setting: &Setting) -> Result<Self, String> {
        let plan = Plan::new(&setting.binary, "mock", 0, 1, "tcp");
        let cluster = Cluster::start(&plan).await.map_err(|e| e.to_string())?;
        let model = cluster.model().await.map_err(|e| e.to_string())?;
        Ok(Self { cluster, model })
    }

    async fn answers(&self, asks: &[Ask]) -> Result<Vec<Answer>, String> {
        let client = self.cluster.client();
        let answers = futures::future::join_all(asks.iter().map(|a| ask(&client, &self.model, a))).await;
        let answers: Result<Vec<_>, _> = answers.into_iter().collect();
        answers.map_err(|e| format!("colocated run: {e}\n{}", self.cluster.logs()))
    }
}
