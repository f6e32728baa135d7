//! Questions to a running service: what would the next request get? They are answered by one of its threads, between its
//! requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::explanation::{Explanation, Question};

/// The way to one service's thread.
#[derive(Clone, Debug)]
pub struct Questions {
    /// The name of the service.
    pub service: String,
    sender: mpsc::Sender<PendingQuestion>,
    receiver: Arc<Mutex<Option<mpsc::Receiver<PendingQuestion>>>>,
}

/// A question, and where its answer goes.
#[derive(Debug)]
pub(crate) struct PendingQuestion {
    pub(crate) question: Question,
    pub(crate) answer: oneshot::Sender<Result<Explanation, String>>,
}

impl Questions {
    pub(super) fn new(service: &str) -> Self {
        let (sender, receiver) = mpsc::channel(MOST_WAITING);
        let receiver = Arc::new(Mutex::new(Some(receiver)));
        Self { service: service.to_owned(), sender, receiver }
    }

    /// The receiver; `None` if it was taken before.
    pub(super) fn receiver(&self) -> Option<mpsc::Receiver<PendingQuestion>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Asks.
    ///
    /// # Errors
    ///
    /// The fault in the question, or that the service's thread does not answer.
    pub async fn ask(&self, question: Question) -> Result<Explanation, String> {
        let (answer, answered) = oneshot::channel();
        let asked = async {
            self.sender.send(PendingQuestion { question, answer }).await.ok()?;
            answered.await.ok()
        };
        match timeout(PATIENCE, asked).await {
            Ok(Some(result)) => result,
            Ok(None) | Err(_) => Err(format!("service {} does not answer", self.service)),
        }
    }
}

/// Further ones wait in their own tasks.
const MOST_WAITING: usize = 4;
/// A thread that is busy for longer than this serves nobody.
const PATIENCE: Duration = Duration::from_secs(2);
