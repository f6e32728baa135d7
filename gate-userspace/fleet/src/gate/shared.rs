//! A book that the control loop and the connections share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::book::Book;

/// A book that is locked for a look, and never across an `await`.
#[derive(Clone, Debug)]
pub struct SharedBook(Arc<Mutex<Book>>);

impl SharedBook {
    /// Shares a book.
    #[must_use]
    pub fn new(book: Book) -> Self {
        Self(Arc::new(Mutex::new(book)))
    }

    /// The book.
    pub fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
