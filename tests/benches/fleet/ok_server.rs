//! A server that speaks Envoy's protocol and always says OK: the least that such a server costs.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;
use gate_userspace::envoy::wire::rls::rate_limit_response::Code;
use gate_userspace::envoy::wire::rls::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use gate_userspace::envoy::wire::rls::{RateLimitRequest, RateLimitResponse};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// The argument that has this program be such a server, before its address.
pub(super) const FLAG: &str = "--ok-server";

struct AlwaysOk;

#[tonic::async_trait]
impl RateLimitService for AlwaysOk {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(RateLimitResponse { overall_code: Code::Ok as i32, ..RateLimitResponse::default() }))
    }
}

/// Serves until the process ends, on one thread, as gate does.
pub(super) fn serve(address: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = Server::builder().add_service(RateLimitServiceServer::new(AlwaysOk)).serve(address);
    Ok(runtime.block_on(server)?)
}

/// The command that starts one.
pub(super) fn command(address: SocketAddr) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([FLAG, &address.to_string()]);
    Ok(command)
}
