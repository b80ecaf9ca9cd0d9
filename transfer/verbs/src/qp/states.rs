//! States of a reliable queue pair, and which attributes go with which step: a table.
//!
//! The table is that of the kernel (`drivers/infiniband/core/verbs.c`, `qp_state_table`, column RC) and of the InfiniBand
//! specification (volume 1, section 11.2.5.2). A driver that is given too little or too much says `EINVAL` and no more.

use std::fmt;

use kvrail_verbs_sys as sys;
use sys::ibv_qp_attr_mask as mask;

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// New, or taken back: holds nothing, answers nothing.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive: answers its peer.
    ReadyToReceive,
    /// Ready to send.
    ReadyToSend,
    /// What was begun is sent, and no more.
    SendDrained,
    /// A send failed; reliable queue pairs go to `Error` instead.
    SendError,
    /// Flushes whatever is posted.
    Error,
}

impl QpState {
    /// All.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendDrained,
        Self::SendError,
        Self::Error,
    ];

    pub(crate) fn raw(self) -> sys::ibv_qp_state {
        match self {
            Self::Reset => sys::ibv_qp_state::IBV_QPS_RESET,
            Self::Init => sys::ibv_qp_state::IBV_QPS_INIT,
            Self::ReadyToReceive => sys::ibv_qp_state::IBV_QPS_RTR,
            Self::ReadyToSend => sys::ibv_qp_state::IBV_QPS_RTS,
            Self::SendDrained => sys::ibv_qp_state::IBV_QPS_SQD,
            Self::SendError => sys::ibv_qp_state::IBV_QPS_SQE,
            Self::Error => sys::ibv_qp_state::IBV_QPS_ERR,
        }
    }

    /// What the library told; a value that it does not define is taken for `Error`.
    pub(crate) fn of(raw: sys::ibv_qp_state) -> Self {
        Self::ALL.into_iter().find(|state| state.raw() == raw).unwrap_or(Self::Error)
    }
}

bitflags::bitflags! {
    /// Attributes of a queue pair, as a change names them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Attributes: u32 {
        /// The next state.
        const STATE = mask::IBV_QP_STATE.0;
        /// The state that it is taken to be in.
        const CURRENT_STATE = mask::IBV_QP_CUR_STATE.0;
        /// Whether draining raises an event.
        const DRAIN_EVENT = mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
        /// What the peer may do.
        const ACCESS = mask::IBV_QP_ACCESS_FLAGS.0;
        /// Partition key.
        const PKEY_INDEX = mask::IBV_QP_PKEY_INDEX.0;
        /// Port.
        const PORT = mask::IBV_QP_PORT.0;
        /// Address of the peer.
        const PATH = mask::IBV_QP_AV.0;
        /// MTU of the path.
        const MTU = mask::IBV_QP_PATH_MTU.0;
        /// Time until an answer is missed.
        const TIMEOUT = mask::IBV_QP_TIMEOUT.0;
        /// Attempts after a missed answer.
        const RETRIES = mask::IBV_QP_RETRY_CNT.0;
        /// Attempts after "not ready".
        const NOT_READY_RETRIES = mask::IBV_QP_RNR_RETRY.0;
        /// First number of a received packet.
        const RECEIVE_SEQUENCE = mask::IBV_QP_RQ_PSN.0;
        /// First number of a sent packet.
        const SEND_SEQUENCE = mask::IBV_QP_SQ_PSN.0;
        /// READs that are under way at once.
        const READS_STARTED = mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
        /// READs that are answered at once.
        const READS_ANSWERED = mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;
        /// Another path, to migrate to.
        const OTHER_PATH = mask::IBV_QP_ALT_PATH.0;
        /// How long a peer is told to wait.
        const NOT_READY_TIMER = mask::IBV_QP_MIN_RNR_TIMER.0;
        /// State of migration.
        const MIGRATION = mask::IBV_QP_PATH_MIG_STATE.0;
        /// Number of the peer's queue pair.
        const DESTINATION = mask::IBV_QP_DEST_QPN.0;
    }
}

/// A step between states and its attributes, `STATE` aside.
struct Step {
    from: QpState,
    to: QpState,
    required: Attributes,
    optional: Attributes,
}

/// A set of attributes as a constant.
macro_rules! of {
    ($($name:ident)|*) => { Attributes::from_bits_retain(0 $(| Attributes::$name.bits())*) };
}

/// Every step but those to `Reset` and `Error`, which go from everywhere and need nothing. Only from `Reset` to `Error` the
/// kernel has no step, although the specification does.
const STEPS: &[Step] = &[
    Step { from: QpState::Reset, to: QpState::Init, required: of!(PKEY_INDEX | PORT | ACCESS), optional: of!() },
    Step { from: QpState::Init, to: QpState::Init, required: of!(), optional: of!(PKEY_INDEX | PORT | ACCESS) },
    Step {
        from: QpState::Init,
        to: QpState::ReadyToReceive,
        required: of!(PATH | MTU | DESTINATION | RECEIVE_SEQUENCE | READS_ANSWERED | NOT_READY_TIMER),
        optional: of!(OTHER_PATH | ACCESS | PKEY_INDEX),
    },
    Step {
        from: QpState::ReadyToReceive,
        to: QpState::ReadyToSend,
        required: of!(TIMEOUT | RETRIES | NOT_READY_RETRIES | SEND_SEQUENCE | READS_STARTED),
        optional: of!(CURRENT_STATE | OTHER_PATH | ACCESS | NOT_READY_TIMER | MIGRATION),
    },
    Step {
        from: QpState::ReadyToSend,
        to: QpState::ReadyToSend,
        required: of!(),
        optional: of!(CURRENT_STATE | OTHER_PATH | ACCESS | NOT_READY_TIMER | MIGRATION),
    },
    Step { from: QpState::ReadyToSend, to: QpState::SendDrained, required: of!(), optional: of!(DRAIN_EVENT) },
    Step {
        from: QpState::SendDrained,
        to: QpState::ReadyToSend,
        required: of!(),
        optional: of!(CURRENT_STATE | OTHER_PATH | ACCESS | NOT_READY_TIMER | MIGRATION),
    },
    Step {
        from: QpState::SendDrained,
        to: QpState::SendDrained,
        required: of!(),
        optional: of!(PORT
            | PATH
            | TIMEOUT
            | RETRIES
            | NOT_READY_RETRIES
            | READS_STARTED
            | READS_ANSWERED
            | OTHER_PATH
            | ACCESS
            | PKEY_INDEX
            | NOT_READY_TIMER
            | MIGRATION),
    },
];

/// A step that a queue pair cannot take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitionError {
    /// The state it is in.
    pub from: QpState,
    /// The state it was to go to.
    pub to: QpState,
    /// Attributes that this step needs and the change does not have; empty if there is no such step.
    pub missing: Attributes,
    /// Attributes that the change has and this step cannot take.
    pub superfluous: Attributes,
    /// Whether there is a step from the one state to the other.
    pub is_step: bool,
}

impl fmt::Display for TransitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a queue pair cannot go from {:?} to {:?}", self.from, self.to)?;
        if !self.is_step {
            return f.write_str(": there is no such step");
        }
        for (what, attributes) in [("missing", self.missing), ("superfluous", self.superfluous)] {
            if !attributes.is_empty() {
                let names: Vec<_> = attributes.iter_names().map(|(name, _)| name).collect();
                write!(f, "; {what}: {}", names.join(", "))?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for TransitionError {}

/// Whether a queue pair can go from one state to the other with these attributes; `STATE` is taken for granted.
///
/// # Errors
///
/// [`TransitionError`] tells what is missing and what is too much.
pub(crate) fn check(from: QpState, to: QpState, given: Attributes) -> Result<(), TransitionError> {
    let given = given - Attributes::STATE;
    let (is_step, required, optional) = match STEPS.iter().find(|step| step.from == from && step.to == to) {
        Some(step) => (true, step.required, step.optional),
        None => {
            let is_down = to == QpState::Reset || (to == QpState::Error && from != QpState::Reset);
            (is_down, Attributes::empty(), Attributes::empty())
        }
    };
    let missing = required - given;
    let superfluous = if is_step { given - required - optional } else { Attributes::empty() };
    if is_step && missing.is_empty() && superfluous.is_empty() {
        return Ok(());
    }
    Err(TransitionError { from, to, missing, superfluous, is_step })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO_INIT: Attributes = of!(PKEY_INDEX | PORT | ACCESS);

    #[test]
    fn the_way_up_takes_exactly_what_it_needs() {
        assert_eq!(check(QpState::Reset, QpState::Init, TO_INIT | Attributes::STATE), Ok(()));
        let to_rtr = of!(PATH | MTU | DESTINATION | RECEIVE_SEQUENCE | READS_ANSWERED | NOT_READY_TIMER);
        assert_eq!(check(QpState::Init, QpState::ReadyToReceive, to_rtr), Ok(()));
        let to_rts = of!(TIMEOUT | RETRIES | NOT_READY_RETRIES | SEND_SEQUENCE | READS_STARTED);
        assert_eq!(check(QpState::ReadyToReceive, QpState::ReadyToSend, to_rts), Ok(()));
    }

    #[test]
    fn an_error_names_what_is_missing_and_what_is_too_much() {
        let given = of!(PORT | ACCESS | TIMEOUT);
        let error = check(QpState::Reset, QpState::Init, given).expect_err("refused");
        assert_eq!(error.missing, Attributes::PKEY_INDEX);
        assert_eq!(error.superfluous, Attributes::TIMEOUT);
        assert_eq!(
            error.to_string(),
            "a queue pair cannot go from Reset to Init; missing: PKEY_INDEX; superfluous: TIMEOUT"
        );
    }

    #[test]
    fn a_step_that_does_not_exist_is_called_so() {
        let error = check(QpState::Reset, QpState::ReadyToSend, TO_INIT).expect_err("refused");
        assert!(!error.is_step);
        assert_eq!(error.to_string(), "a queue pair cannot go from Reset to ReadyToSend: there is no such step");
    }

    #[test]
    fn error_and_reset_are_reached_from_everywhere_and_take_nothing() {
        for from in QpState::ALL {
            for to in [QpState::Reset, QpState::Error] {
                if (from, to) == (QpState::Reset, QpState::Error) {
                    assert!(!check(from, to, Attributes::STATE).expect_err("refused").is_step);
                    continue;
                }
                assert_eq!(check(from, to, Attributes::STATE), Ok(()), "{from:?} to {to:?}");
                let error = check(from, to, Attributes::PORT).expect_err("refused");
                assert_eq!(error.superfluous, Attributes::PORT);
            }
        }
    }

    #[test]
    fn steps_are_named_once_and_no_attribute_is_both() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!((step.required & step.optional).is_empty(), "{:?} to {:?}", step.from, step.to);
            assert!(!(step.required | step.optional).contains(Attributes::STATE));
            let again = STEPS[index + 1..].iter().any(|other| other.from == step.from && other.to == step.to);
            assert!(!again, "{:?} to {:?} is there twice", step.from, step.to);
        }
    }

    #[test]
    fn states_have_the_numbers_of_the_header() {
        for (number, state) in QpState::ALL.into_iter().enumerate() {
            assert_eq!(state.raw().0 as usize, number);
            assert_eq!(QpState::of(state.raw()), state);
        }
    }
}
