//! A connection to a Redis server.

use crate::images::{SecretError, secret};
use leno_files::{FileAccess, readers};
use leno_identity::handshake_failure;
use leno_model::{RedisQuotas, RedisTransport};
use leno_runtime::client::{self, ClientError};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, Value};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{InvalidDnsNameError, ServerName};

/// Bytes that a server may send between two writes of the node.
const MOST_RECEIVED: usize = 256 << 10;

/// Why Redis does not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum QuotaStoreError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Authorities(#[from] ClientError),
    /// A file system that hangs.
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    ServerName(#[from] InvalidDnsNameError),
    #[error("TLS: {}", handshake_failure(.0).unwrap_or_else(|| .0.to_string()))]
    Tls(io::Error),
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("an answer that makes no sense: {0}")]
    Nonsense(String),
    #[error("it answers another question than the last one")]
    OtherQuestion,
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("no connection within {0:?}")]
    NoConnection(Duration),
}

/// An open connection. It is closed when it is dropped.
pub(super) struct Connection {
    commands: MultiplexedConnection,
    /// Set while an answer is due.
    due: Arc<AtomicBool>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects and logs in. Reads the password and the authorities anew each time.
    pub(super) async fn open(redis: &RedisQuotas) -> Result<Self, QuotaStoreError> {
        let mut info = RedisConnectionInfo::default().set_db(redis.database.into()).set_skip_set_lib_name();
        if let Some(username) = &redis.username {
            info = info.set_username(username);
        }
        if let Some(file) = redis.password_file.clone() {
            let password = blocking(move || secret(&file, &FileAccess::Any)).await?;
            info = info.set_password(password);
        }
        let stream = TcpStream::connect(&redis.address).await?;
        stream.set_nodelay(true)?;
        match &redis.transport {
            RedisTransport::Plain => Self::over(&info, stream).await,
            RedisTransport::Tls { ca_file, server_name } => {
                let file = ca_file.clone();
                let read = move || client::tls(file.as_deref(), &FileAccess::Any);
                let config = Arc::new(blocking(read).await?.config);
                let name = ServerName::try_from(server_name.clone())?;
                let stream = TlsConnector::from(config).connect(name, stream).await;
                Self::over(&info, stream.map_err(QuotaStoreError::Tls)?).await
            }
        }
    }

    async fn over<S>(info: &RedisConnectionInfo, stream: S) -> Result<Self, QuotaStoreError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // Each call has its own time limit.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let due = Arc::new(AtomicBool::new(true));
        let stream = AnswerStream { stream, received: 0, due: due.clone() };
        let (commands, driver) = MultiplexedConnection::new_with_config(info, stream, config).await?;
        let mut connection = Self { commands, due, driver: tokio::spawn(driver).abort_handle() };
        connection.warn_of_eviction().await;
        Ok(connection)
    }

    pub(super) async fn command(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        self.due.store(true, Ordering::Relaxed);
        let answer = self.commands.send_packed_command(command).await;
        self.due.store(false, Ordering::Relaxed);
        answer.and_then(Value::extract_error)
    }

    /// Warns of a server that evicts keys: it would lose counters one by one, without any sign.
    async fn warn_of_eviction(&mut self) {
        // The user may lack the right to this command.
        let Ok(info) = self.command(redis::cmd("INFO").arg("memory")).await else { return };
        let Ok(text) = redis::from_redis_value::<String>(info) else { return };
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let policy = field("maxmemory_policy").unwrap_or("noeviction").trim_end();
        if policy != "noeviction" && field("maxmemory").is_some_and(|limit| limit.trim_end() != "0") {
            tracing::warn!(
                "Redis evicts keys when its memory is full ({policy}), and evicted counters begin anew; set maxmemory-policy noeviction"
            );
        }
    }
}

async fn blocking<T, E>(read: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, QuotaStoreError>
where
    T: Send + 'static,
    E: Send + 'static,
    QuotaStoreError: From<E>,
{
    Ok(readers::run(readers::OPERATOR, readers::MAX_WAIT, move || Ok(read())).await??)
}

/// A stream that fails if it receives more bytes than any answer has, or any bytes while no answer
/// is due: they would be taken for the next answer.
struct AnswerStream<S> {
    stream: S,
    received: usize,
    due: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for AnswerStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.received += buffer.filled().len() - before;
        if this.received > MOST_RECEIVED {
            return Poll::Ready(Err(io::Error::other("the answer is longer than any that makes sense")));
        }
        if buffer.filled().len() > before && !this.due.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::Error::other("the server answers what it was not asked")));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnswerStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.received = 0;
        Pin::new(&mut this.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
