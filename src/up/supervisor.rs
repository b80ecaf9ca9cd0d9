//! All processes of a pool, from start to drain.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use anyhow::{Context, bail};
use futures::future::{join_all, select_all, try_join_all};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    backoff::{Backoff, Decision},
    child::Child,
    logs::{self, Logs, tail},
    plan::{Plan, Role, Spec},
};
use crate::ready::Ready;

/// Time to say goodbye once requests have ended: what open streams are told, fences, members that leave.
const FAREWELL_MAX: Duration = Duration::from_secs(5);

/// A process that is, or should be, running.
#[derive(Debug)]
pub struct Member {
    /// What it is.
    pub spec: Spec,
    /// What it said when it was last ready.
    pub ready: Option<Ready>,
    child: Option<Child>,
    backoff: Backoff,
}

impl Member {
    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::pid)
    }

    /// Starts it; `conductor` is where the conductor is. One that was well before comes back without a log rather than
    /// not at all.
    fn spawn(&mut self, plan: &Plan, logs: &Logs, conductor: Option<SocketAddr>) -> anyhow::Result<()> {
        let args = plan.args(&self.spec, conductor, self.ready.as_ref());
        let log = logs.path(&self.spec.name);
        let output = match logs::open(&log) {
            Err(error) if self.ready.is_some() => {
                say!("{} goes on without a log: {error:#}", self.spec.name);
                logs::nowhere()?
            }
            opened => opened?,
        };
        self.child = Some(Child::start(&plan.program, &self.spec.name, &args, log, output)?);
        Ok(())
    }

    /// Keeps it running: when it dies, it is started again, later each time.
    async fn tend(
        &mut self,
        plan: &Plan,
        logs: &Logs,
        conductor: Option<SocketAddr>,
        restarts: u32,
    ) -> anyhow::Result<Infallible> {
        loop {
            let (how, ran) = self.death().await;
            let name = &self.spec.name;
            match self.backoff.handle_death(ran, restarts) {
                Decision::Again { wait, attempt } => {
                    say!("{name} {how}; restart {attempt} of {restarts} in {} ms", wait.as_millis());
                    sleep(wait).await;
                }
                Decision::GiveUp => {
                    let log = logs.path(name);
                    let end = tail(&log, 12);
                    bail!("{name} {how}, after {restarts} restarts; its log {} ends:\n{end}", log.display());
                }
            }
            if let Err(error) = self.spawn(plan, logs, conductor) {
                say!("{error:#}");
                continue;
            }
            let Some(child) = &mut self.child else { continue };
            match child.ready().await {
                Ok(ready) => {
                    say!("{} is ready again, pid {}{}", self.spec.name, ready.pid, places(&ready));
                    self.ready = Some(ready);
                }
                Err(error) => {
                    say!("{error}");
                    child.kill().await;
                }
            }
        }
    }

    /// Resolves when it does not run (any more): how it ended, and how long it ran.
    async fn death(&mut self) -> (String, Duration) {
        let Some(child) = &mut self.child else { return ("could not be started".into(), Duration::ZERO) };
        let how = child.ended().await.map_or_else(|error| error.to_string(), |status| status.to_string());
        let ran = child.age();
        self.child = None;
        (format!("ended ({how})"), ran)
    }
}

/// Where a process is now: a node that comes back is elsewhere.
fn places(ready: &Ready) -> String {
    let place = |words: &str, address: Option<SocketAddr>| address.map(|at| format!(", {words} {at}"));
    let places = [place("at", ready.http.or(ready.grpc)), place("status at", ready.admin.or(ready.http))];
    places.into_iter().flatten().collect()
}

/// Starts, watches and ends the processes of a plan.
#[derive(Debug)]
pub struct Supervisor {
    plan: Plan,
    logs: Logs,
    restarts: u32,
    members: Vec<Member>,
}

impl Supervisor {
    /// A pool of which nothing runs yet; a process that dies is started again `restarts` times in a row.
    pub fn new(plan: Plan, logs: Logs, restarts: u32) -> Self {
        let member = |spec: &Spec| Member { spec: spec.clone(), ready: None, child: None, backoff: Backoff::default() };
        Self { members: plan.specs.iter().map(member).collect(), plan, logs, restarts }
    }

    /// All processes.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Where logs go.
    pub fn logs(&self) -> &Logs {
        &self.logs
    }

    /// How many prefill and decode nodes there should be.
    pub fn node_counts(&self) -> (usize, usize) {
        let count = |role: Role| self.members.iter().filter(|member| member.spec.role == role).count();
        (count(Role::Prefill), count(Role::Decode))
    }

    /// Where the gateway listens.
    ///
    /// # Errors
    /// If it has not said.
    pub fn endpoint(&self) -> anyhow::Result<SocketAddr> {
        self.address(Role::Gateway, |ready| ready.http).context("the gateway did not say where it listens")
    }

    fn address(&self, role: Role, which: fn(&Ready) -> Option<SocketAddr>) -> Option<SocketAddr> {
        self.members.iter().find(|member| member.spec.role == role)?.ready.as_ref().and_then(which)
    }

    /// Starts everything: the conductor first, then the rest side by side.
    ///
    /// # Errors
    /// The first process that does not become ready, with the end of its log.
    pub async fn start(&mut self) -> anyhow::Result<()> {
        for conductors in [true, false] {
            let begun = Instant::now();
            let conductor = self.address(Role::Conductor, |ready| ready.grpc);
            let (plan, logs) = (&self.plan, &self.logs);
            let group = self.members.iter_mut().filter(|member| (member.spec.role == Role::Conductor) == conductors);
            let starts = group.map(async |member| {
                say!("starting {}", member.spec.name);
                member.spawn(plan, logs, conductor)?;
                let Some(child) = &mut member.child else { return Ok(()) };
                member.ready = Some(child.ready().await?);
                say!("{} is ready ({:.1} s)", member.spec.name, begun.elapsed().as_secs_f64());
                anyhow::Ok(())
            });
            try_join_all(starts).await?;
        }
        Ok(())
    }

    /// Keeps everything running: whoever dies is started again, later each time.
    ///
    /// # Errors
    /// A process that died as often as allowed.
    pub async fn watch(&mut self) -> anyhow::Result<Infallible> {
        let conductor = self.address(Role::Conductor, |ready| ready.grpc);
        let (plan, logs, restarts) = (&self.plan, &self.logs, self.restarts);
        // Side by side: one that takes its time must not keep another down.
        let tended = self.members.iter_mut().map(|member| Box::pin(member.tend(plan, logs, conductor, restarts)));
        select_all(tended).await.0
    }

    /// Ends everything in order: the gateway first, which finishes its streams while the nodes still serve; then the
    /// nodes; the conductor last. Requests get `requests_max`, which the processes were told as well; what is still there
    /// [`FAREWELL_MAX`] later is killed.
    pub async fn drain(&mut self, requests_max: Duration) {
        let deadline = Instant::now() + requests_max + FAREWELL_MAX;
        for stage in [&[Role::Gateway][..], &[Role::Prefill, Role::Decode], &[Role::Conductor]] {
            let mut ending: Vec<&mut Member> =
                self.members.iter_mut().filter(|member| stage.contains(&member.spec.role)).collect();
            for child in ending.iter_mut().filter_map(|member| member.child.as_mut()) {
                child.terminate();
            }
            let ended = join_all(ending.iter_mut().filter_map(|member| member.child.as_mut()).map(Child::ended));
            if timeout_at(deadline, ended).await.is_err() {
                break;
            }
        }
        self.kill().await;
    }

    /// Ends whatever still runs, at once.
    pub async fn kill(&mut self) {
        for member in &mut self.members {
            if let Some(mut child) = member.child.take()
                && child.status().is_none()
            {
                say!("{} had to be killed", member.spec.name);
                child.kill().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    use super::*;
    use crate::up::plan::test_plan;

    /// A program that plays any role: counts its starts in `DIR/NAME`, then does as the script says.
    fn pool(dir: &Path, script: &str, restarts: u32) -> Supervisor {
        let program = dir.join("fake");
        let text = format!(
            "#!/bin/sh\nrole=$1; echo start >> {0}/$role\n\
             ready() {{ echo \"{{\\\"ready\\\":true,\\\"role\\\":\\\"$role\\\",\\\"pid\\\":$$,\\\"grpc\\\":\\\"127.0.0.1:1\\\"}}\"; }}\n\
             trap 'echo $role >> {0}/order; exit 0' TERM\n\
             stay() {{ while :; do sleep 0.02; done; }}\n\
             {script}\n",
            dir.display()
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let spec = |role: Role, name: &str| Spec { role, name: name.into() };
        let specs =
            vec![spec(Role::Conductor, "conductor"), spec(Role::Decode, "decode-0"), spec(Role::Gateway, "gateway")];
        Supervisor::new(test_plan(program, specs), Logs::create(Some(&dir.join("logs"))).unwrap(), restarts)
    }

    fn said(dir: &Path, name: &str) -> String {
        fs::read_to_string(dir.join(name)).unwrap_or_default()
    }

    #[tokio::test]
    async fn everybody_starts_and_ends_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let mut pool = pool(dir.path(), "ready; stay", 5);
        pool.start().await.unwrap();
        assert!(pool.members().iter().all(|member| member.ready.is_some() && member.pid().is_some()));
        pool.drain(Duration::from_secs(10)).await;
        assert_eq!(said(dir.path(), "order"), "gateway\ndecode\nconductor\n");
        assert!(pool.members().iter().all(|member| member.pid().is_none()));
    }

    #[tokio::test]
    async fn one_that_dies_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let script = "ready; if [ $role = decode ] && [ $(wc -l < \"${0%/*}/decode\") -lt 3 ]; then exit 1; fi; stay";
        let mut pool = pool(dir.path(), script, 5);
        pool.start().await.unwrap();
        let outcome = tokio::time::timeout(Duration::from_secs(2), pool.watch()).await;
        assert!(outcome.is_err(), "nobody was given up");
        assert_eq!(said(dir.path(), "decode").lines().filter(|l| *l == "start").count(), 3);
        assert_eq!(said(dir.path(), "gateway").lines().count(), 1, "the others stay as they are");
        pool.drain(Duration::from_secs(10)).await;
    }

    #[tokio::test]
    async fn one_that_dies_comes_back_whatever_became_of_its_log() {
        for becomes in ["rm -r \"${0%/*}/logs\"", "rm -r \"${0%/*}/logs\"; touch \"${0%/*}/logs\""] {
            let dir = tempfile::tempdir().unwrap();
            let first = "[ $role = decode ] && [ $(wc -l < \"${0%/*}/decode\") -lt 2 ]";
            let script = format!("ready; if {first}; then sleep 0.2; {becomes}; exit 1; fi; stay");
            let mut pool = pool(dir.path(), &script, 1);
            pool.start().await.unwrap();
            assert!(tokio::time::timeout(Duration::from_secs(2), pool.watch()).await.is_err(), "nobody was given up");
            assert_eq!(said(dir.path(), "decode").lines().filter(|l| *l == "start").count(), 2);
            pool.drain(Duration::from_secs(10)).await;
        }
    }

    #[tokio::test]
    async fn one_that_takes_its_time_to_come_back_keeps_no_other_down() {
        let dir = tempfile::tempdir().unwrap();
        // The second life of the decode node is never ready; the gateway dies when that has begun.
        let script = r#"lives=$(wc -l < "${0%/*}/$role")
            case $role$lives in
            decode1) ready; exit 1 ;;
            decode2) stay ;;
            gateway1) ready; until [ $(wc -l < "${0%/*}/decode") = 2 ]; do sleep 0.02; done; exit 1 ;;
            esac
            ready; stay"#;
        let mut pool = pool(dir.path(), script, 5);
        pool.start().await.unwrap();
        let twice = async {
            while said(dir.path(), "gateway").lines().count() < 2 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = twice => {}
            _ = pool.watch() => panic!("nobody is given up"),
            () = sleep(Duration::from_secs(20)) => panic!("the gateway waits for the decode node"),
        }
        pool.drain(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn one_that_keeps_dying_is_given_up_with_the_end_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let script = "ready; [ $role = decode ] && { echo out of luck >&2; exit 7; }; stay";
        let mut pool = pool(dir.path(), script, 2);
        pool.start().await.unwrap();
        let error = pool.watch().await.unwrap_err().to_string();
        assert!(error.contains("decode-0 ended") && error.contains("out of luck"), "{error}");
        pool.drain(Duration::from_secs(10)).await;
    }

    #[tokio::test]
    async fn one_that_does_not_end_is_killed_when_the_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let script = "if [ $role = gateway ]; then trap '' TERM; fi; ready; while :; do sleep 0.02; done";
        let mut pool = pool(dir.path(), script, 0);
        pool.start().await.unwrap();
        let pids: Vec<u32> = pool.members().iter().filter_map(Member::pid).collect();
        pool.drain(Duration::from_millis(300)).await;
        for pid in pids {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} still runs");
        }
    }

    #[tokio::test]
    async fn a_start_that_fails_says_who_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let mut pool = pool(dir.path(), "[ $role = decode ] && { echo no such model >&2; exit 1; }; ready; stay", 5);
        let error = pool.start().await.unwrap_err().to_string();
        assert!(error.contains("decode-0 ended before it was ready") && error.contains("no such model"), "{error}");
        pool.drain(Duration::from_secs(5)).await;
    }
}
