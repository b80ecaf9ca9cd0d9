//! A member, seen from the coordinator: in this process, in one that was started, or on another machine.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::member::{Member, Meter};
use super::order::{Order, Word};
use crate::far::{Ask, BenchError, Far, FarSide, Mouth, Place, Reply};

/// How often who waits is asked to show that it lives.
const TICK: Duration = Duration::from_millis(100);

/// A member that can be told things, and heard.
pub struct Link {
    to: To,
    from: Receiver<Result<Word, BenchError>>,
}

enum To {
    Here(Sender<Order>),
    There(Mouth),
}

impl Link {
    /// The member of this process, in a thread of its own.
    #[must_use]
    pub fn here(place: Place, meter: Meter) -> Self {
        let (to, orders) = channel::<Order>();
        let (words, from) = channel();
        std::thread::spawn(move || {
            let mut member = Member::new(place).with_meter(meter);
            for order in orders {
                if words.send(member.obey(order)).is_err() {
                    return;
                }
            }
        });
        Self { to: To::Here(to), from }
    }

    /// One that is started, or that serves at an address.
    ///
    /// # Errors
    /// If it cannot be started or reached.
    pub fn there(side: &FarSide) -> Result<Self, BenchError> {
        let (mouth, mut ear) = Far::start(side)?.split();
        mouth.be_patient()?;
        let (words, from) = channel();
        std::thread::spawn(move || {
            loop {
                let word = match ear.hear() {
                    Ok(Reply::Member(word)) => Ok(word),
                    Ok(_) => Err(BenchError::unexpected("a member's word")),
                    Err(error) => Err(error),
                };
                // Refusals come as errors as well, and more may follow: only the end of the talk ends this.
                let over = matches!(&word, Err(BenchError::Far(_))) && ear.is_over();
                if words.send(word).is_err() || over {
                    return;
                }
            }
        });
        Ok(Self { to: To::There(mouth), from })
    }

    /// Tells it something.
    ///
    /// # Errors
    /// If it has ended.
    pub fn tell(&mut self, order: Order) -> Result<(), BenchError> {
        match &mut self.to {
            To::Here(to) => to.send(order).map_err(|_| BenchError::Far("the member of this process ended".into())),
            To::There(mouth) => mouth.tell(&Ask::Member(order)),
        }
    }

    /// Waits for its word for so long, and shows meanwhile that it does.
    ///
    /// # Errors
    /// What it refused, or that it is silent or gone.
    pub fn hear(&self, within: Duration, tick: &mut dyn FnMut()) -> Result<Word, BenchError> {
        let until = Instant::now() + within;
        loop {
            match self.from.recv_timeout(TICK) {
                Ok(word) => return word,
                Err(RecvTimeoutError::Disconnected) => return Err(BenchError::Far("it has ended".into())),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                    return Err(BenchError::Far(format!("it said nothing for {within:?}")));
                }
                Err(RecvTimeoutError::Timeout) => tick(),
            }
        }
    }

    /// The process, where one was started for this.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match &self.to {
            To::Here(_) => None,
            To::There(mouth) => mouth.pid(),
        }
    }

    /// The address of this machine by which it was reached.
    #[must_use]
    pub fn near(&self) -> Option<IpAddr> {
        match &self.to {
            To::Here(_) => None,
            To::There(mouth) => mouth.near(),
        }
    }
}

/// Where an engine runs, from its member's word.
///
/// # Errors
/// If the word is another.
pub fn started(word: Word) -> Result<(SocketAddr, usize), BenchError> {
    match word {
        Word::Started { address, rails } => Ok((address, rails)),
        _ => Err(BenchError::unexpected("started")),
    }
}
