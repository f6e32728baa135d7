//! Reads of whole keys, the questions for their sizes, and the removal of keys for which nobody waits.

use super::Resp;
use crate::dispatcher::wire::KeySizes;
use crate::protocol::resp::{self, Command, Extent, Request};

impl KeySizes<Request> for Resp {
    #[inline]
    fn extent(request: &Request, bytes: &[u8]) -> Extent {
        request.extent(bytes)
    }

    fn read_keys<'b>(request: &Request, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        request.read_keys(bytes)
    }

    fn size_questions(request: &Request, bytes: &[u8], most: usize, out: &mut Vec<u8>) -> usize {
        request.size_questions(bytes, most, out)
    }

    fn told_size(answer: &[u8]) -> Option<u64> {
        resp::told_size(answer)
    }

    fn has_no_question(answer: &[u8]) -> bool {
        resp::says_unknown_command(answer)
    }

    #[inline]
    fn frees(request: &Request) -> bool {
        request.command == DEL && request.meta.keys > 0
    }

    fn free_later(request: &Request, bytes: &[u8], out: &mut Vec<u8>) {
        request.write_as(b"UNLINK", bytes, out);
    }
}

const DEL: Command = Command::named("del");
