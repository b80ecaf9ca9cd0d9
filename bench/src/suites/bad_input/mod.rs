//! Bad input: at the endpoint, at flags and configuration, and at the wire. A clear typed error each, no panic, and the
//! server still answers.

mod endpoint;
mod settings;
mod wire;

use super::{Findings, Setting};
use crate::answer::{Ask, ask};
use crate::cluster::{Cluster, Plan};

/// Runs all three tables against real processes.
pub async fn run(setting: &Setting) -> Findings {
    let mut findings = Findings::default();
    settings::run(setting, &mut findings);
    let mut plan = Plan::new(&setting.binary, "mock", 1, 1, "tcp");
    plan.gateway_args = vec!["--body-timeout-ms".into(), "1500".into()];
    let cluster = match Cluster::start(&plan).await {
        Ok(cluster) => cluster,
        Err(e) => {
            findings.failure(e.to_string());
            return findings;
        }
    };
    if let Err(e) = all_at_a_cluster(&cluster, &mut findings).await {
        findings.failure(e);
    }
    findings.check(!cluster.panicked(), format!("a process panicked:\n{}", cluster.logs()));
    let bad = cluster.drain();
    findings.check(bad.is_empty(), format!("did not drain cleanly: {}", bad.join("; ")));
    findings
}

async fn all_at_a_cluster(cluster: &Cluster, findings: &mut Findings) -> Result<(), String> {
    let model = cluster.model().await.map_err(|e| e.to_string())?;
    endpoint::run(cluster, &model, findings).await;
    still_answers(cluster, &model, "endpoint").await?;
    wire::run(cluster, findings).await;
    still_answers(cluster, &model, "wire").await
}

/// A question that needs every process: new to all, and too long for the decode node to compute it alone.
async fn still_answers(cluster: &Cluster, model: &str, after: &str) -> Result<(), String> {
    let remote = async || match cluster.decode.first() {
        Some(node) => wire::count(cluster, node, "/requests/prefilled_remote").await,
        None => Err("no decode node".into()),
    };
    let before = remote().await?;
    let question = Ask::plain(format!("after the {after}: {}", "does it still answer? ".repeat(20)), 4);
    let answer = ask(&cluster.client(), model, &question).await;
    answer.map_err(|e| format!("after the cases at the {after} nobody answers: {e}\n{}", cluster.logs()))?;
    if remote().await? == before + 1 { Ok(()) } else { Err(format!("after the cases at the {after} P does nothing")) }
}
