//! What must be zero when nothing runs, at every process that could hold something for a request.

use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, Process, eventually};

/// By when every counter must be back at zero.
pub(super) const SETTLE: Duration = Duration::from_secs(15);

/// Counters of a node's `/status`.
const NODE: [&str; 12] = [
    "/in_flight",
    "/requests/running",
    "/requests/queued",
    "/blocks/shared",
    "/blocks/private",
    "/blocks/writing",
    "/blocks/reserved",
    "/blocks/quarantined",
    "/leases",
    "/leases_quarantined",
    "/transfers",
    "/transfers_lent",
];

/// Counters of a gateway's: places taken, and journals kept.
const GATEWAY: [&str; 2] = ["/requests/open", "/choices/open"];

/// Counters of each member in the conductor's: what the nodes report, and what it counts on top until they do.
const MEMBER: [&str; 6] =
    ["/running", "/queued", "/queued_tokens", "/blocks/reserved", "/blocks/quarantined", "/credits"];

/// Waits until no process holds anything for a request any more.
///
/// # Errors
/// Names the process and the counter that stays.
pub(super) async fn settled(cluster: &Cluster) -> Result<(), String> {
    nodes_settled(cluster).await?;
    settles(cluster, &cluster.gateway, |status| held(status, &GATEWAY)).await?;
    settles(cluster, &cluster.conductor, |status| {
        let members = status["members"].as_array().into_iter().flatten();
        members.flat_map(|m| held(m, &MEMBER).into_iter().map(|h| format!("{}: {h}", m["node_id"]))).collect()
    })
    .await
}

/// The same for the nodes alone.
///
/// # Errors
/// As [`settled`].
pub(super) async fn nodes_settled(cluster: &Cluster) -> Result<(), String> {
    for node in cluster.prefill.iter().chain(&cluster.decode) {
        settles(cluster, node, |status| {
            let mut held = held(status, &NODE);
            let blocks = |state: &str| status["blocks"][state].as_u64().unwrap_or(0);
            let (free, cached, total) = (blocks("free"), blocks("cached"), blocks("total"));
            if free + cached != total || total == 0 {
                held.push(format!("{free} blocks free and {cached} cached, of {total}"));
            }
            held
        })
        .await?;
    }
    Ok(())
}

/// The counters that are not zero; one that is missing is not.
fn held(status: &Value, counters: &[&str]) -> Vec<String> {
    let value = |counter: &str| status.pointer(counter).and_then(Value::as_u64);
    let of = counters.iter().map(|&counter| (counter, value(counter)));
    of.filter(|(_, value)| *value != Some(0)).map(|(counter, value)| format!("{counter} = {value:?}")).collect()
}

async fn settles(cluster: &Cluster, process: &Process, held: impl Fn(&Value) -> Vec<String>) -> Result<(), String> {
    eventually(&format!("{} holds nothing", process.name), SETTLE, || async {
        let held = held(&cluster.status(process).await?);
        if held.is_empty() { Ok(()) } else { Err(held.join(", ")) }
    })
    .await
    .map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_counter_that_is_not_zero_or_not_there_is_told() {
        let status = json!({"requests": {"open": 0}, "choices": {"open": 2}});
        assert_eq!(held(&status, &GATEWAY), ["/choices/open = Some(2)"]);
        assert_eq!(held(&status, &["/requests/open", "/gone"]), ["/gone = None"]);
    }
}
