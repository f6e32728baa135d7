//! Writing to a client's socket what is not in its output buffer.

use std::io::ErrorKind;

use crate::dispatcher::clients::stream::ClientWriter;

/// Writes everything, as fast as the client reads.
pub(crate) async fn write_all(socket: &ClientWriter, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    loop {
        match socket.try_flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => socket.writable().await?,
            flushed => return flushed,
        }
    }
}

/// Writes what there is room for; how many bytes that is.
pub(super) fn write_at_once(socket: &ClientWriter, bytes: &[u8]) -> std::io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match socket.try_write(&bytes[written..]) {
            Ok(len) => written += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}
