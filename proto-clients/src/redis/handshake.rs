//! From an address to a connection that takes commands.

use std::time::Instant;

use bytes::BytesMut;
use shards::net::{ReadHalf, TcpStream, WriteHalf};

use super::{Command, Incoming, NotSent, Parser, PoolConfig, Reply, ServerError};

/// Room for a read.
pub(super) const READ_BYTES: usize = 16 * 1024;

/// A connection that has been let in.
pub(super) struct Ready {
    pub(super) read: ReadHalf,
    pub(super) write: WriteHalf,
    pub(super) buffer: BytesMut,
    pub(super) parser: Parser,
}

fn dial_error(error: impl std::fmt::Display) -> NotSent {
    NotSent::Dial(error.to_string())
}

/// Dials and logs in before `deadline`.
pub(super) async fn connect(config: &PoolConfig, endpoint: &str, deadline: Instant) -> Result<Ready, NotSent> {
    let connected = shards::timeout_at(deadline, async {
        let addr = crate::dial::resolve(endpoint).await.map_err(NotSent::Dial)?;
        let stream = TcpStream::connect(addr).await.map_err(dial_error)?;
        let (read, write) = stream.into_split();
        let closer = write.closer();
        let parser = Parser::new(config.reply_bytes_max);
        let mut ready = Ready { read, write, buffer: BytesMut::with_capacity(READ_BYTES), parser };
        match log_in(&mut ready, config).await {
            Ok(()) => Ok(ready),
            Err(error) => {
                closer.close();
                Err(error)
            }
        }
    });
    connected.await.unwrap_or_else(|_| Err(NotSent::Dial(format!("{endpoint} did not answer in time"))))
}

async fn log_in(ready: &mut Ready, config: &PoolConfig) -> Result<(), NotSent> {
    let password = config.password.as_deref();
    let username = config.username.as_deref();
    let mut hello = Command::new("HELLO", if password.is_some() { 4 } else { 1 });
    hello.arg(b"3");
    if let Some(password) = password {
        hello.arg(b"AUTH").arg(username.unwrap_or("default").as_bytes()).arg(password.as_bytes());
    }
    if let Err(error) = ask(ready, hello).await? {
        // Before 6.0 there is no HELLO; a proxy may not know RESP3. Both speak RESP2.
        if !(error.message.starts_with("NOPROTO") || error.message.starts_with("ERR")) {
            return Err(NotSent::Refused(error.message));
        }
        if let Some(password) = password {
            let mut auth = Command::new("AUTH", 1 + usize::from(username.is_some()));
            if let Some(username) = username {
                auth.arg(username.as_bytes());
            }
            auth.arg(password.as_bytes());
            accept(ask(ready, auth).await?)?;
        }
    }
    if config.database != 0 {
        let mut select = Command::new("SELECT", 1);
        select.arg_u64(u64::from(config.database));
        accept(ask(ready, select).await?)?;
    }
    Ok(())
}

fn accept(answer: Result<Reply, ServerError>) -> Result<(), NotSent> {
    answer.map(drop).map_err(|error| NotSent::Refused(error.message))
}

/// One command and its reply. Pushes cannot come yet: nothing has been subscribed to.
async fn ask(ready: &mut Ready, command: Command) -> Result<Result<Reply, ServerError>, NotSent> {
    let bytes = command.finish().ok_or(NotSent::Incomplete)?;
    let (written, _) = ready.write.write_all(BytesMut::from(bytes.as_ref())).await;
    written.map_err(dial_error)?;
    loop {
        match ready.parser.next(&mut ready.buffer).map_err(dial_error)? {
            Some(Incoming::Reply(Reply::Error(error))) => return Ok(Err(error)),
            Some(Incoming::Reply(reply)) => return Ok(Ok(reply)),
            Some(Incoming::Push(_)) => continue,
            None => {}
        }
        ready.buffer.reserve(READ_BYTES);
        let (read, buffer) = ready.read.read(std::mem::take(&mut ready.buffer)).await;
        ready.buffer = buffer;
        if read.map_err(dial_error)? == 0 {
            return Err(NotSent::Dial("the server closed the connection during log-in".to_owned()));
        }
    }
}
