//! The boundaries of WebSocket frames (RFC 6455, 5.2) in bytes that pass, so that gate can put a close frame between two of them.
//! Nothing else of a frame is read: what is no frame passes as it is, and only has no boundaries.

/// The place in a stream of frames.
#[derive(Clone, Debug, Default)]
pub(super) struct Frames {
    /// The part of a head that has passed.
    head: [u8; LONGEST_HEAD],
    head_len: usize,
    /// The bytes of the payload that are to come.
    left: u64,
}

impl Frames {
    /// True between two frames, and before the first.
    pub(super) const fn is_between(&self) -> bool {
        self.head_len == 0 && self.left == 0
    }

    /// Notes that these bytes have passed.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = self.step(bytes);
            bytes = &bytes[len..];
        }
    }

    /// How many of these bytes are of the frame that has begun; none between two frames.
    pub(super) fn rest_in(&self, bytes: &[u8]) -> usize {
        let mut frames = self.clone();
        let mut at = 0;
        while !frames.is_between() && at < bytes.len() {
            at += frames.step(&bytes[at..]);
        }
        at
    }

    /// Passes some of these bytes, and none behind the end of a frame. Returns how many.
    fn step(&mut self, bytes: &[u8]) -> usize {
        if self.left > 0 {
            let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            self.left -= len as u64;
            return len;
        }
        self.head[self.head_len] = bytes[0];
        self.head_len += 1;
        if let Some(length) = self.length() {
            self.left = length;
            self.head_len = 0;
        }
        1
    }

    /// The length of the payload, if all of the head is there.
    fn length(&self) -> Option<u64> {
        let head = &self.head[..self.head_len];
        let second = *head.get(1)?;
        let of_length = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let of_mask = if second & 0x80 == 0 { 0 } else { 4 };
        let length = head.get(2..2 + of_length)?;
        if head.len() < 2 + of_length + of_mask {
            return None;
        }
        Some(match of_length {
            0 => u64::from(second & 0x7f),
            _ => length.iter().fold(0, |length, &byte| length << 8 | u64::from(byte)),
        })
    }
}

/// A close frame of a server with this code and reason, which has at most 123 bytes.
pub(super) fn close_of_server(code: u16, reason: &str) -> Vec<u8> {
    let payload = [&code.to_be_bytes()[..], reason.as_bytes()].concat();
    [&[CLOSE, payload.len() as u8][..], &payload].concat()
}

/// A close frame of a client, whose mask changes nothing: what it hides from old proxies is not there.
pub(super) fn close_of_client(code: u16) -> Vec<u8> {
    [&[CLOSE, 0x80 | 2, 0, 0, 0, 0][..], &code.to_be_bytes()].concat()
}

/// The first byte of a close frame: the last of its message, with opcode 8.
const CLOSE: u8 = 0x88;
/// Two bytes, eight of a length, and a mask.
const LONGEST_HEAD: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(masked: bool, length: usize) -> Vec<u8> {
        let mask = if masked { 0x80 } else { 0 };
        let mut frame = match length {
            0..=125 => vec![0x82, mask | length as u8],
            126..=65_535 => [&[0x82, mask | 126][..], &(length as u16).to_be_bytes()].concat(),
            _ => [&[0x82, mask | 127][..], &(length as u64).to_be_bytes()].concat(),
        };
        frame.extend_from_slice(&[0x88; 4][..if masked { 4 } else { 0 }]);
        frame.resize(frame.len() + length, 0x88);
        frame
    }

    #[test]
    fn boundaries_are_found_however_the_bytes_are_cut() {
        for masked in [false, true] {
            let all: Vec<_> = [0, 1, 125, 126, 127, 65_535, 65_536, 5]
                .into_iter()
                .map(|length| frame(masked, length))
                .collect();
            let ends: Vec<usize> = all
                .iter()
                .scan(0, |end, frame| {
                    *end += frame.len();
                    Some(*end)
                })
                .collect();
            let bytes = all.concat();
            for piece in [1, 2, 3, 7, 1_000, bytes.len()] {
                let mut frames = Frames::default();
                let mut at = 0;
                for cut in bytes.chunks(piece) {
                    frames.pass(cut);
                    at += cut.len();
                    assert_eq!(frames.is_between(), ends.contains(&at), "{masked} {piece} {at}");
                    let next = ends.iter().find(|&&end| end >= at).map_or(0, |end| end - at);
                    assert_eq!(frames.rest_in(&bytes[at..]), next, "{masked} {piece} {at}");
                }
            }
        }
    }

    #[test]
    fn the_longest_length_does_not_overflow() {
        let mut frames = Frames::default();
        frames.pass(&[0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255]);
        frames.pass(&[0; 100]);
        assert!(!frames.is_between());
        assert_eq!(frames.rest_in(&[0; 10]), 10);
    }

    #[test]
    fn close_frames_are_frames() {
        for close in [close_of_server(1_013, "the quota is spent"), close_of_client(1_001)] {
            let mut frames = Frames::default();
            frames.pass(&close[..close.len() - 1]);
            assert!(!frames.is_between());
            frames.pass(&close[close.len() - 1..]);
            assert!(frames.is_between());
        }
    }
}
