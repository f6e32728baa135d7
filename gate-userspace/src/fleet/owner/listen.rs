//! The owner's port.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

use super::server::Owner;

/// Serves until `until` is ready; then streams are ended.
///
/// # Errors
///
/// The listening socket's, or tonic's.
pub async fn serve(
    owner: &Arc<Owner>,
    listener: TcpListener,
    until: impl Future<Output = ()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let server = Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .max_concurrent_streams(MOST_STREAMS)
        .add_service(owner.service())
        .serve_with_incoming(TcpListenerStream::new(listener));
    let mut releases = tokio::time::interval(RELEASE_EVERY);
    let releasing = async {
        loop {
            releases.tick().await;
            owner.release_left();
        }
    };
    tokio::select! {
        served = server => Ok(served?),
        () = releasing => Ok(()),
        () = until => Ok(()),
    }
}

const KEEPALIVE: Duration = Duration::from_secs(2);
/// The most streams of one connection: a gate needs one.
const MOST_STREAMS: u32 = 8;
const RELEASE_EVERY: Duration = Duration::from_millis(250);
