//! Signals, delivered to a shard as messages.

use std::io;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::mailbox::{self, Receiver};

/// Signals that may wait to be taken; more of them say nothing new.
const WAITING_MAX: usize = 8;

/// What was asked of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM
    Terminate,
    /// SIGINT
    Interrupt,
}

/// SIGTERM and SIGINT, taken over from their default of ending the process.
#[derive(Debug)]
pub struct Signals {
    arrived: Receiver<Signal>,
}

impl Signals {
    /// Takes the signals over, for the whole process and for good. A thread waits for them.
    ///
    /// # Errors
    /// What the system says.
    pub fn install() -> io::Result<Self> {
        let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
        let (sender, arrived) = mailbox::bounded(WAITING_MAX);
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                let signal = if signal == SIGTERM { Signal::Terminate } else { Signal::Interrupt };
                // Full: as many wait already as anybody could want.
                let _ = sender.try_send(signal);
            }
        })?;
        Ok(Self { arrived })
    }

    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        match self.arrived.recv().await {
            Some(signal) => signal,
            // The thread never ends, so neither does the wait.
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_signal_arrives() {
        let mut signals = Signals::install().unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(crate::run(async move { signals.next().await }), Signal::Terminate);
    }
}
