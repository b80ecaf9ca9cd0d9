//! The receiver's credit ledger: how many bytes each sender may have on the way to one of our NICs. No incast, no round trip to a conductor.
//!
//! One [`Ledger`] a local NIC. While at most one sender has work there nobody is limited, and nothing is said. When a second one has, an
//! *epoch* begins: every sender stops and says where it stands ([`Demand`]), and from there on is raised by quanta ([`Limit`]). When
//! it has been only one for a while, limits are lifted.
//!
//! **Window.** What all senders together may have on the way: what the NIC takes in the least time that a raise was seen to take
//! to come back as bytes, and 9/8 of a quantum. Less would leave the NIC idle while raises travel, more only queues in front
//! of it. Where the NIC takes less than it could all the same, there is slack for a while. Rate and time are measured, because nobody
//! can tell the speed of the slowest link before a NIC; not before what was under way at the beginning is here, for that came in frames
//! of any size.
//!
//! **Standing credit.** Over TCP a sender without work holds a little, so that a short transfer leaves at once: asking first would take as
//! long in the queue as the bytes themselves. It counts against nothing while its holder wants nothing, and all of it together fits a
//! switch's buffer.
//!
//! **Turns.** Over RDMA a word costs as much as a slice, so there a raise is a *turn* of many slices, of which only half a window may be on
//! the way at a time: the sender's own completions make room for the next. Its window is what the NIC takes in a set time.
//!
//! **Order.** Start-time fair queueing (Goyal, Vin, Cheng 1996): tenants by weight, the senders of one tenant alike. A sender that
//! wants little goes first, as long as it is not far ahead of its share: each is done sooner and nobody later (SIRD, NSDI 2025;
//! Homa, SIGCOMM 2018). A sender that holds credit and moves nothing stops counting against the window, so that it holds up nobody.
//!
//! **Arrivals.** Over TCP we count what arrives; over RDMA only the sender knows what settled. The two meet in one number: `offset` is what
//! settled without being counted here (lost on a path that is fenced, used on nothing, all of it over RDMA). A sender's word is always
//! a little old, so *settled by its word less arrived by our count* is never more than the true offset, and equals it whenever nothing
//! is on the way.
//!
//! **Invariants** (property-tested): what honest senders have on the way is never more than the window plus what was under way when
//! the limits were imposed; totals only grow; with demand and nothing on the way there is a raise; everything comes back.
//!
//! A poll costs O(senders). Pure: words, arrivals and `now` come in, words go out.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::account::{Demand, Limit, SHORT_BYTES, STANDING_BYTES};
use super::{PeerId, TenantId, Time};

/// Knobs of a [`Ledger`].
#[derive(Clone, Debug, PartialEq)]
pub struct CreditConfig {
    /// Bytes on the way to this NIC, at least, whatever was measured.
    pub window_min: u64,
    /// The same at most.
    pub window_max: u64,
    /// Bytes by which the window may grow beyond what was measured while the NIC takes less than it could: senders' own control
    /// (TCP's after a loss) makes a raise take longer than the least.
    pub slack_max: u64,
    /// A raise is a turn, and the window is what the NIC takes in this time.
    pub turns: Option<Duration>,
    /// A quantum is what the NIC takes in this time.
    pub quantum_time: Duration,
    /// Bytes of a quantum, at least and at most.
    pub quantum_bytes: (u64, u64),
    /// Who wants no more than this goes first, and may be as far ahead of its share.
    pub short_bytes: u64,
    /// Standing credit of a sender without work, and of all together.
    pub standing_bytes: (u64, u64),
    /// Limits are lifted when no two senders have had work for so long.
    pub lift_after: Duration,
    /// A sender that holds credit and moves nothing for so long no longer counts against the window.
    pub idle_after: Duration,
    /// A sender that does not say where it stands for so long ignores its limit.
    pub answer_within: Duration,
    /// Bytes that a sender may claim to have been on the way when it was limited.
    pub under_way_max: u64,
}

impl Default for CreditConfig {
    fn default() -> Self {
        Self {
            window_min: 128 << 10,
            window_max: 64 << 20,
            slack_max: 32 << 10,
            turns: None,
            quantum_time: Duration::from_millis(1),
            quantum_bytes: (32 << 10, 1 << 20),
            short_bytes: SHORT_BYTES,
            standing_bytes: (STANDING_BYTES, 512 << 10),
            lift_after: Duration::from_millis(20),
            idle_after: Duration::from_millis(50),
            answer_within: Duration::from_secs(6),
            under_way_max: 1 << 30,
        }
    }
}

impl CreditConfig {
    /// For a NIC at which nobody sees bytes arrive: turns, no standing credit, and no slack, since a shallow buffer drops what is too much.
    #[must_use]
    pub fn one_sided() -> Self {
        Self {
            window_min: 128 << 10,
            slack_max: 0,
            // More than a raise takes to come back as bytes on a fabric that is worth the name.
            turns: Some(Duration::from_micros(100)),
            // A word costs as much as a slice; a longer turn has the others wait longer.
            quantum_time: Duration::from_millis(4),
            quantum_bytes: (128 << 10, 4 << 20),
            standing_bytes: (0, 0),
            ..Self::default()
        }
    }
}

/// Virtual time is bytes × this / weight.
const SCALE: u128 = 1 << 10;
/// What a sender that moved nothing for a while may catch up on.
const LAG_BYTES: u64 = 2 << 20;
/// The rate is measured over no less: frames are counted whole, and a link lets a burst pass now and then.
const RATE_OVER: Duration = Duration::from_millis(50);
/// Of the best rate, what is left after an interval that found less although there was demand.
const RATE_KEEPS: f64 = 0.95;
/// Below this part of the best rate the NIC takes less than it could.
const RATE_SHORT: f64 = 0.95;

#[derive(Debug)]
struct Sender {
    demand: Demand,
    /// It was told of this epoch.
    asked_at: Option<Time>,
    /// It has said where it stood at its beginning.
    has_answered: bool,
    granted: u64,
    /// Of what was granted, bytes that may be on the way at a time.
    at_once: u32,
    /// Payload bytes that arrived by our count.
    arrived: u64,
    /// What settled and was not counted; see the module.
    offset: i128,
    virtual_time: u128,
    /// Raises that have not come back, and when they were made.
    raises: VecDeque<(u64, Time)>,
    /// When it last moved something, or was given credit while it had none.
    active_at: Time,
}

impl Sender {
    fn settled(&self) -> u64 {
        u64::try_from(i128::from(self.arrived) + self.offset).unwrap_or(0)
    }

    fn outstanding(&self) -> u64 {
        self.granted.saturating_sub(self.settled())
    }

    /// Of that, what takes part of the window: standing credit does not.
    fn on_the_way(&self, standing: u64) -> u64 {
        let stands = if self.is_busy() { 0 } else { standing };
        let outstanding = if self.has_answered { self.outstanding().saturating_sub(stands) } else { 0 };
        outstanding.min(self.at_once.into())
    }

    /// Bytes that it wants and may not send yet.
    fn unmet(&self) -> u64 {
        if self.has_answered { self.demand.wanted.saturating_sub(self.granted) } else { 0 }
    }

    /// It holds credit and has moved nothing for so long.
    fn sleeps(&self, idle_after: Duration, now: Time) -> bool {
        self.outstanding() > 0 && now.since(self.active_at) >= idle_after
    }

    fn is_busy(&self) -> bool {
        self.demand.wanted > self.settled()
    }
}

/// One NIC's ledger: who wants to send, and what each may.
#[derive(Debug)]
pub struct Ledger {
    config: CreditConfig,
    senders: BTreeMap<PeerId, Sender>,
    weights: BTreeMap<TenantId, u32>,
    /// Start tag of the sender that was raised last.
    present: u128,
    epoch: u32,
    is_limiting: bool,
    /// Since when no two senders have work.
    calm_since: Option<Time>,
    words: VecDeque<(PeerId, Limit)>,
    /// When words were last polled: what was due by then is done.
    polled_at: Time,
    overdrawn: VecDeque<PeerId>,
    /// Bytes a second, and since when how many have settled; not yet in this epoch.
    rate: f64,
    since: Option<(Time, u64)>,
    settled: u64,
    /// Least time from a raise to its bytes.
    least: Option<Duration>,
    /// Of the window, what is there because the NIC takes less than it could.
    slack: u64,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new(config: CreditConfig) -> Self {
        Self {
            config,
            senders: BTreeMap::new(),
            weights: BTreeMap::new(),
            present: 0,
            epoch: 0,
            is_limiting: false,
            calm_since: None,
            words: VecDeque::new(),
            polled_at: Time(0),
            overdrawn: VecDeque::new(),
            rate: 0.0,
            since: None,
            settled: 0,
            least: None,
            slack: 0,
        }
    }

    // ---- getters

    /// Are senders limited now?
    #[must_use]
    pub fn is_limiting(&self) -> bool {
        self.is_limiting
    }

    /// Bytes that may be on the way now, all senders together.
    #[must_use]
    pub fn window(&self) -> u64 {
        let travel = |time: Duration| (self.rate * time.as_secs_f64()) as u64;
        let measured = match self.config.turns {
            Some(time) => travel(time),
            None => self.least.map_or(0, travel) + self.quantum() * 9 / 8,
        };
        let measured = measured.max(self.config.window_min);
        (measured + self.slack).min(self.config.window_max)
    }

    /// Bytes of a raise, at most.
    #[must_use]
    pub fn quantum(&self) -> u64 {
        let (least, most) = self.config.quantum_bytes;
        let quantum = ((self.rate * self.config.quantum_time.as_secs_f64()) as u64).clamp(least, most);
        // A turn is so many whole parts, or a sender would end each with a crumb.
        let part = if self.config.turns.is_some() { self.window() / 2 } else { 1 };
        quantum.next_multiple_of(part.max(1))
    }

    /// Bytes that were granted and may be on the way; what stands does not count.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.senders.values().map(|sender| sender.on_the_way(self.config.standing_bytes.0)).sum()
    }

    /// What [`Self::handle_arrived`] may grow to for this sender; `None` without a limit. What arrives beyond it was sent without leave.
    #[must_use]
    pub fn ceiling(&self, peer: PeerId) -> Option<u64> {
        let sender = self.senders.get(&peer).filter(|sender| sender.has_answered)?;
        Some(u64::try_from(i128::from(sender.granted) - sender.offset).unwrap_or(0))
    }

    /// Worth looking again when so much of this sender has arrived: half a quantum more, or all that it may send.
    #[must_use]
    pub fn news_at(&self, peer: PeerId) -> u64 {
        let more = |sender: &Sender| sender.arrived + sender.outstanding().clamp(1, self.quantum() / 2);
        self.senders.get(&peer).map_or(u64::MAX, more)
    }

    /// When to poll although nothing happened, for words and for who is overdrawn.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let lift = self.calm_since.map(|since| since + self.config.lift_after);
        let waits = self.senders.values().filter_map(|sender| {
            if sender.has_answered {
                (sender.on_the_way(self.config.standing_bytes.0) > 0).then(|| sender.active_at + self.config.idle_after)
            } else {
                sender.asked_at.map(|at| at + self.config.answer_within)
            }
        });
        if self.is_limiting { waits.chain(lift).filter(|at| *at > self.polled_at).min() } else { None }
    }

    // ---- what happened

    /// A tenant's share; 1 if never set.
    pub fn set_tenant_weight(&mut self, tenant: TenantId, weight: u32) {
        self.weights.insert(tenant, weight.max(1));
    }

    /// A sender says what it wants; older words than the last are ignored.
    pub fn handle_demand(&mut self, peer: PeerId, demand: Demand, now: Time) {
        let (present, epoch) = (self.present, self.epoch);
        let (under_way_max, sender) = (self.config.under_way_max, self.sender(peer, now));
        if demand.sequence <= sender.demand.sequence || demand.settled > demand.used || demand.used > demand.wanted {
            return;
        }
        let (before, had) = (sender.offset, sender.unmet());
        sender.offset = sender.offset.max(i128::from(demand.settled) - i128::from(sender.arrived));
        let offset = sender.offset;
        if demand.lost > sender.demand.lost {
            sender.raises.clear(); // they came back as no bytes, and tell nothing of the way
        }
        sender.demand = demand;
        let mut overdraws = false;
        if sender.asked_at.is_some() && demand.epoch == epoch {
            let limit = if sender.has_answered { sender.granted } else { demand.settled.saturating_add(under_way_max) };
            overdraws = demand.used > limit;
            if !std::mem::replace(&mut sender.has_answered, true) {
                (sender.granted, sender.at_once, sender.active_at) = (demand.used, Limit::ALL, now);
            }
        }
        if had == 0 {
            // No credit is hoarded.
            sender.virtual_time = sender.virtual_time.max(present);
        }
        if overdraws {
            self.overdrawn.push_back(peer);
        }
        let moved = if before == i128::MIN { 0 } else { (offset - before) as u64 };
        self.on_settled(peer, moved, now);
        if self.is_limiting {
            self.ask(peer, now);
        }
        self.review(now);
    }

    /// So many payload bytes of a sender have arrived in all, by our count.
    pub fn handle_arrived(&mut self, peer: PeerId, total: u64, now: Time) {
        let sender = self.sender(peer, now);
        if total <= sender.arrived {
            return;
        }
        let moved = total - std::mem::replace(&mut sender.arrived, total);
        self.on_settled(peer, moved, now);
        self.review(now);
    }

    /// A sender has another way to this NIC, and may have used it before it knew where it leads: it is asked anew where it stands,
    /// with all others.
    pub fn handle_new_way(&mut self, peer: PeerId, now: Time) {
        if self.senders.get(&peer).is_some_and(|sender| sender.asked_at.is_some()) {
            self.begin(now);
        }
    }

    /// The peer is gone and fenced: what it held is free.
    pub fn handle_peer_lost(&mut self, peer: PeerId, now: Time) {
        self.senders.remove(&peer);
        self.words.retain(|(to, _)| *to != peer);
        self.overdrawn.retain(|gone| *gone != peer);
        self.review(now);
    }

    // ---- what to do

    /// The next word to a sender, if one is due.
    pub fn poll_word(&mut self, now: Time) -> Option<(PeerId, Limit)> {
        self.polled_at = now;
        if self.calm_since.is_some_and(|since| now >= since + self.config.lift_after) {
            self.lift();
        }
        self.words.pop_front().or_else(|| self.stand()).or_else(|| self.raise(now))
    }

    /// A sender that sent more than it might, or does not say where it stands.
    pub fn poll_overdrawn(&mut self, now: Time) -> Option<PeerId> {
        let within = self.config.answer_within;
        let silent = |s: &Sender| !s.has_answered && s.asked_at.is_some_and(|at| now >= at + within);
        let silent = self.senders.iter_mut().find(|(_, sender)| silent(sender));
        let silent = silent.map(|(peer, sender)| {
            sender.asked_at = None;
            *peer
        });
        self.overdrawn.pop_front().or(silent)
    }

    // ---- inside

    fn sender(&mut self, peer: PeerId, now: Time) -> &mut Sender {
        let present = self.present;
        self.senders.entry(peer).or_insert_with(|| Sender {
            demand: Demand::default(),
            asked_at: None,
            has_answered: false,
            granted: 0,
            at_once: Limit::ALL,
            arrived: 0,
            offset: i128::MIN,
            virtual_time: present,
            raises: VecDeque::new(),
            active_at: now,
        })
    }

    /// Begins or ends what the number of senders with work calls for.
    fn review(&mut self, now: Time) {
        let several = self.senders.values().filter(|sender| sender.is_busy()).nth(1).is_some();
        if several && !self.is_limiting {
            self.is_limiting = true;
            (self.least, self.slack) = (None, 0);
            self.begin(now);
        }
        let calm = self.is_limiting && !several;
        self.calm_since = if calm { self.calm_since.or(Some(now)) } else { None };
    }

    /// A new epoch: everybody is asked.
    fn begin(&mut self, now: Time) {
        self.epoch += 1;
        self.since = None;
        let peers: Vec<PeerId> = self.senders.keys().copied().collect();
        for peer in peers {
            if let Some(sender) = self.senders.get_mut(&peer) {
                (sender.asked_at, sender.has_answered) = (None, false);
                sender.raises.clear();
            }
            self.ask(peer, now);
        }
    }

    /// Tells a sender of this epoch, once.
    fn ask(&mut self, peer: PeerId, now: Time) {
        let limit = Limit { epoch: self.epoch, total: 0, quantum: self.quantum() as u32, at_once: Limit::ALL };
        if let Some(sender) = self.senders.get_mut(&peer).filter(|sender| sender.asked_at.is_none()) {
            sender.asked_at = Some(now);
            self.words.push_back((peer, limit));
        }
    }

    fn lift(&mut self) {
        self.is_limiting = false;
        self.calm_since = None;
        self.epoch += 1;
        let limit = Limit { epoch: self.epoch, total: Limit::NONE, quantum: 0, at_once: Limit::ALL };
        for (peer, sender) in &mut self.senders {
            if sender.asked_at.take().is_some() {
                self.words.push_back((*peer, limit));
            }
            sender.has_answered = false;
            sender.raises.clear();
        }
    }

    /// Bytes of a sender are not on the way any more: measures.
    fn on_settled(&mut self, peer: PeerId, bytes: u64, now: Time) {
        if bytes == 0 {
            return;
        }
        let Some(sender) = self.senders.get(&peer) else { return };
        let slept = now.since(sender.active_at) >= self.config.idle_after;
        let lag = if slept { u128::from(LAG_BYTES) * self.scales().of(sender) } else { u128::MAX };
        let Some(sender) = self.senders.get_mut(&peer) else { return };
        // Of what it slept through only so much is made up for.
        sender.virtual_time = sender.virtual_time.max(self.present.saturating_sub(lag));
        sender.active_at = now;
        let settled = sender.settled();
        while let Some((_, at)) = sender.raises.front().copied().filter(|(total, _)| *total <= settled) {
            sender.raises.pop_front();
            let took = now.since(at);
            self.least = Some(self.least.map_or(took, |least| least.min(took)));
        }
        self.settled += bytes;
        if let Some((since, before)) = self.since
            && now.since(since) >= RATE_OVER
        {
            self.measure((self.settled - before) as f64 / now.since(since).as_secs_f64());
            self.since = Some((now, self.settled));
        }
    }

    /// So many bytes a second were taken in the last interval.
    fn measure(&mut self, found: f64) {
        let quantum = self.quantum();
        let has_demand = self.senders.values().any(|sender| sender.unmet() > 0);
        if has_demand && found < self.rate * RATE_SHORT {
            self.slack = (self.slack + quantum).min(self.config.slack_max);
        } else {
            self.slack = self.slack.saturating_sub(quantum / 4);
        }
        let keeps = if has_demand { RATE_KEEPS } else { 1.0 };
        self.rate = found.max(self.rate * keeps);
    }

    /// Gives standing credit to a sender without work that lacks some and is not ahead of its share.
    fn stand(&mut self) -> Option<(PeerId, Limit)> {
        let (each, all) = self.config.standing_bytes;
        let bytes = each.min(all / (self.senders.len() as u64).max(1));
        if !self.is_limiting || bytes == 0 {
            return None;
        }
        let lacks = |s: &Sender| s.has_answered && !s.is_busy() && s.outstanding() <= bytes / 2;
        if !self.senders.values().any(lacks) {
            return None;
        }
        let scales = self.scales();
        let mut lacking = self.senders.iter_mut().filter(|(_, sender)| lacks(sender));
        let (peer, sender, scale) = lacking.find_map(|(peer, sender)| {
            let scale = scales.of(sender);
            let ahead = u128::from(self.config.short_bytes) * scale;
            (sender.virtual_time <= self.present + ahead).then_some((*peer, sender, scale))
        })?;
        let more = bytes - sender.outstanding();
        sender.virtual_time = sender.virtual_time.max(self.present) + u128::from(more) * scale;
        sender.granted += more;
        let (total, quantum) = (sender.granted, self.quantum() as u32);
        Some((peer, Limit { epoch: self.epoch, total, quantum, at_once: Limit::ALL }))
    }

    /// Raises the next in order, if the window has room.
    fn raise(&mut self, now: Time) -> Option<(PeerId, Limit)> {
        if !self.is_limiting {
            return None;
        }
        let (idle_after, standing) = (self.config.idle_after, self.config.standing_bytes.0);
        let counts = |s: &&Sender| !s.sleeps(idle_after, now);
        let outstanding: u64 = self.senders.values().filter(counts).map(|sender| sender.on_the_way(standing)).sum();
        let (peer, is_short, scale) = self.next(now)?;
        let (window, quantum, epoch) = (self.window(), self.quantum(), self.epoch);
        let at_once = self.at_once();
        let sender = self.senders.get_mut(&peer)?;
        let bytes = sender.unmet().min(if at_once == Limit::ALL { quantum.min(window) } else { quantum });
        // A part that grew smaller is the next turn's: more than that may be on the way now.
        let is_within = sender.at_once != Limit::ALL && sender.outstanding() > u64::from(at_once);
        let at_once = if is_within { at_once.max(sender.at_once) } else { at_once };
        let its_own = if counts(&&*sender) { sender.on_the_way(standing) } else { 0 };
        // What it had sent before it was limited is all on the way.
        let is_excess = sender.at_once == Limit::ALL && sender.outstanding() > u64::from(at_once);
        let its = if is_excess { u64::MAX / 2 } else { (its_own + bytes).min(at_once.into()) };
        if outstanding > 0 && outstanding - its_own + its > window {
            return None; // the next in order waits for room; nobody overtakes it with less
        }
        self.since = self.since.or(Some((now, self.settled)));
        if sender.outstanding() == 0 {
            sender.active_at = now;
        }
        sender.granted += bytes;
        sender.at_once = at_once;
        if at_once == Limit::ALL {
            sender.raises.push_back((sender.granted, now));
        }
        if !is_short {
            self.present = self.present.max(sender.virtual_time);
        }
        sender.virtual_time += u128::from(bytes) * scale;
        Some((peer, Limit { epoch, total: sender.granted, quantum: quantum as u32, at_once }))
    }

    /// Bytes of a turn that may be on the way: two senders share the window, and who is alone has all of it.
    fn at_once(&self) -> u32 {
        let busy = self.senders.values().filter(|sender| sender.is_busy()).take(2).count() as u64;
        let part = self.window() / busy.max(1);
        if self.config.turns.is_some() { u32::try_from(part).unwrap_or(Limit::ALL - 1) } else { Limit::ALL }
    }

    /// Whose turn it is, whether for its shortness, and how much virtual time a byte costs it.
    fn next(&self, now: Time) -> Option<(PeerId, bool, u128)> {
        let scales = self.scales();
        // Who sleeps gets no more than a window's worth.
        let (idle_after, window) = (self.config.idle_after, self.window());
        let may = |sender: &Sender| !sender.sleeps(idle_after, now) || sender.outstanding() < window;
        let wants = |sender: &Sender| sender.unmet() > 0 && may(sender);
        let waiting = || self.senders.iter().filter(|(_, sender)| wants(sender));
        let is_short = |sender: &Sender| {
            let ahead = u128::from(self.config.short_bytes) * scales.of(sender);
            sender.unmet() <= self.config.short_bytes && sender.virtual_time <= self.present + ahead
        };
        let short = waiting().filter(|(_, sender)| is_short(sender)).min_by_key(|(peer, s)| (s.unmet(), **peer));
        let fair = || waiting().min_by_key(|(peer, sender)| (sender.virtual_time, **peer));
        let (peer, sender) = short.or_else(fair)?;
        Some((*peer, short.is_some(), scales.of(sender)))
    }

    fn scales(&self) -> Scales {
        let mut scales = BTreeMap::<TenantId, u128>::new();
        for sender in self.senders.values().filter(|sender| sender.is_busy()) {
            *scales.entry(sender.demand.tenant).or_default() += SCALE;
        }
        for (tenant, weight) in &self.weights {
            let scale = scales.entry(*tenant).or_insert(SCALE);
            *scale /= u128::from(*weight);
        }
        Scales(scales)
    }
}

/// How much virtual time a byte costs, by tenant: its share is divided among its senders with work.
struct Scales(BTreeMap<TenantId, u128>);

impl Scales {
    fn of(&self, sender: &Sender) -> u128 {
        self.0.get(&sender.demand.tenant).copied().unwrap_or(SCALE)
    }
}

#[cfg(test)]
mod tests;
