//! All processes of a pool, from start to drain.

use std::{convert::Infallible, net::SocketAddr, process::ExitStatus, time::Duration};

use anyhow::{Context, bail};
use futures::future::{join_all, select_all};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    backoff::{Backoff, Decision},
    child::Child,
    logs::{Logs, tail},
    plan::{Plan, Role, Spec},
};
use crate::ready::Ready;

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

    /// Resolves when it has ended; never, if it does not run.
    async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        match &mut self.child {
            Some(child) => child.ended().await,
            None => std::future::pending().await,
        }
    }
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
        let first: Vec<usize> = self.of(|role| role == Role::Conductor);
        let rest: Vec<usize> = self.of(|role| role != Role::Conductor);
        for group in [first, rest] {
            let begun = Instant::now();
            for &index in &group {
                eprintln!("starting {}", self.members[index].spec.name);
                self.spawn(index)?;
            }
            let chosen = self.members.iter_mut().enumerate().filter(|(index, _)| group.contains(index));
            let waits = chosen.filter_map(|(_, member)| {
                let name = member.spec.name.clone();
                let (child, told) = (member.child.as_mut()?, &mut member.ready);
                Some(async move {
                    *told = Some(child.ready().await?);
                    eprintln!("{name} is ready ({:.1} s)", begun.elapsed().as_secs_f64());
                    anyhow::Ok(())
                })
            });
            futures::future::try_join_all(waits).await?;
        }
        Ok(())
    }

    fn of(&self, wanted: impl Fn(Role) -> bool) -> Vec<usize> {
        (0..self.members.len()).filter(|&index| wanted(self.members[index].spec.role)).collect()
    }

    fn spawn(&mut self, index: usize) -> anyhow::Result<()> {
        let conductor = self.address(Role::Conductor, |ready| ready.grpc);
        let member = &mut self.members[index];
        let args = self.plan.args(&member.spec, conductor, member.ready.as_ref());
        let log = self.logs.path(&member.spec.name);
        member.child = Some(Child::start(&self.plan.program, &member.spec.name, &args, log)?);
        Ok(())
    }

    /// Keeps everything running: whoever dies is started again, later each time.
    ///
    /// # Errors
    /// A process that died as often as allowed.
    pub async fn watch(&mut self) -> anyhow::Result<Infallible> {
        loop {
            let (index, status) = self.death().await;
            let member = &mut self.members[index];
            let name = member.spec.name.clone();
            let ran = member.child.take().map_or(Duration::ZERO, |child| child.age());
            match member.backoff.handle_death(ran, self.restarts) {
                Decision::Again { wait, attempt } => {
                    eprintln!(
                        "{name} ended ({status}); starting it again in {} ms ({attempt}. time)",
                        wait.as_millis()
                    );
                    sleep(wait).await;
                    self.revive(index).await;
                }
                Decision::GiveUp => {
                    let log = self.logs.path(&name);
                    bail!(
                        "{name} ended ({status}) and was started again {} times; its log {} ends:\n{}",
                        self.restarts,
                        log.display(),
                        tail(&log, 12)
                    );
                }
            }
        }
    }

    /// Starts a process again; one that does not become ready is left for the next round of [`Supervisor::watch`].
    async fn revive(&mut self, index: usize) {
        if let Err(error) = self.spawn(index) {
            eprintln!("{error:#}");
            return;
        }
        let member = &mut self.members[index];
        let Some(child) = &mut member.child else { return };
        match child.ready().await {
            Ok(ready) => {
                eprintln!("{} is ready again, pid {}", member.spec.name, ready.pid);
                member.ready = Some(ready);
            }
            Err(error) => {
                eprintln!("{error}");
                child.kill().await;
            }
        }
    }

    /// The next process that ends.
    async fn death(&mut self) -> (usize, String) {
        let waits = self.members.iter_mut().map(|member| Box::pin(member.ended()));
        let (ended, index, _) = select_all(waits).await;
        (index, ended.map_or_else(|error| error.to_string(), |status| status.to_string()))
    }

    /// Ends everything in order: the gateway first, which finishes its streams while the nodes still serve; then the
    /// nodes; the conductor last. What is still there after `bound` is killed.
    pub async fn drain(&mut self, bound: Duration) {
        let deadline = Instant::now() + bound;
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
                eprintln!("{} had to be killed", member.spec.name);
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
