//! Answers that their origin has confirmed, by a 304 or by the same bytes: the part of them that is written.
//!
//! Such an answer may come with each request. Its body is on disk already, and must not fill the room of what waits to be written.

use std::sync::Arc;
use std::time::SystemTime;

use super::{Cache, TOUCH_EVERY, ToWrite};
use crate::cache::response::StoredResponse;

impl Cache {
    /// The part of `newer` that is to be written, if it takes the place of `before` and has the same body; `None` if that body is gone.
    pub(crate) async fn to_write(
        &self,
        before: &StoredResponse,
        newer: &StoredResponse,
        now: SystemTime,
    ) -> Option<ToWrite> {
        // Once in a while it is written all the same: its use is noted, and an earlier write may have failed.
        if newer.is_as_good_as(before) && !before.is_use_due(now, TOUCH_EVERY) {
            newer.note_as(before);
            return Some(ToWrite::Nothing);
        }
        if self.is_on_disk(newer).await {
            return Some(ToWrite::Record);
        }
        self.body(newer).await.map(ToWrite::All)
    }

    /// True if there is a file of its body.
    async fn is_on_disk(&self, response: &StoredResponse) -> bool {
        let shared = Arc::clone(self.disk.shared());
        let Ok(_permit) = self.reads.acquire().await else { return false };
        let body = (response.digest, response.len);
        let has = move || shared.opened().is_some_and(|opened| opened.blobs.has(&body.0, body.1));
        tokio::task::spawn_blocking(has).await.unwrap_or(false)
    }
}
