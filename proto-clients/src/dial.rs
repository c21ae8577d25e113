//! What every client's dial needs: names to addresses without holding up the shard, and times that do not all strike at
//! once.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

/// `duration`, give or take a random part of it up to `1/part`, so that connections made together do not end together.
pub(crate) fn spread(duration: Duration, part: u32) -> Duration {
    let span = u64::try_from((duration / part).as_micros()).unwrap_or(u64::MAX).max(1);
    let offset = shards::random_u64() % span.saturating_mul(2);
    (duration + Duration::from_micros(offset)).saturating_sub(Duration::from_micros(span))
}

/// Resolves `host:port`, on a short-lived thread where a name server has to be asked.
///
/// # Errors
/// What the resolver said, in words.
pub(crate) async fn resolve(endpoint: &str) -> Result<SocketAddr, String> {
    if let Ok(addr) = endpoint.parse() {
        return Ok(addr);
    }
    let (answer, mut answers) = shards::mailbox::bounded(1);
    let name = endpoint.to_owned();
    std::thread::Builder::new()
        .name("resolve".to_owned())
        .spawn(move || {
            let found = name.to_socket_addrs().map(|mut all| all.next());
            // Whoever asked may have given up.
            let _ = answer.try_send(found);
        })
        .map_err(|error| error.to_string())?;
    match answers.recv().await {
        Some(Ok(Some(addr))) => Ok(addr),
        Some(Err(error)) => Err(format!("{endpoint}: {error}")),
        Some(Ok(None)) | None => Err(format!("{endpoint} has no address")),
    }
}
