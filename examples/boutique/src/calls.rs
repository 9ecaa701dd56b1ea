//! The requests and responses of functions, and the calls between functions.

use bytes::Bytes;
use hyper::{Method, StatusCode};
use prost::Message;
use std::fmt::{Debug, Display};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// Sends calls to other functions. Each transport implements it.
pub trait Calls: Send + Sync {
    /// Sends this to a function, and returns the body of the response if its status is 200.
    fn call(
        &self,
        callee: &'static str,
        path: &'static str,
        payload: Payload<'_>,
    ) -> impl Future<Output = Result<Bytes, Failure>> + Send;

    /// Waits without using a core, to imitate a slow function.
    fn wait(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

/// A method of a function, with the messages of its requests and responses.
pub struct Operation<Question, Answer> {
    /// The function's name.
    pub callee: &'static str,
    /// The path of its calls.
    pub path: &'static str,
    messages: PhantomData<fn(Question) -> Answer>,
}

impl<Question: Message + Default + Debug, Answer: Message + Default + Debug> Operation<Question, Answer> {
    /// A method that can be called.
    pub const fn new(callee: &'static str, path: &'static str) -> Self {
        Self { callee, path, messages: PhantomData }
    }

    /// Calls it.
    pub async fn ask(&self, calls: &impl Calls, question: &Question) -> Result<Answer, Failure> {
        let answer = calls.call(self.callee, self.path, Payload::Message(question)).await?;
        Ok(Answer::decode(answer)?)
    }

    /// Reads the message of a call of it.
    pub fn question(&self, request: &Request) -> Result<Question, Failure> {
        Ok(Question::decode(request.body.clone())?)
    }

    /// Answers a call of it.
    pub fn answer(&self, answer: impl Into<Arc<Answer>>) -> Outcome
    where
        Answer: 'static,
    {
        let answer: Arc<Answer> = answer.into();
        Outcome::Reply(Reply::of(Body::Message(answer)))
    }

    /// Delegates the call to it, with the received message.
    pub fn answer_instead(&self) -> Outcome {
        Outcome::Forward { callee: self.callee, path: self.path, body: Body::Same }
    }

    /// Delegates the call to it, with this message.
    pub fn answer_instead_to(&self, question: Question) -> Outcome
    where
        Question: 'static,
    {
        Outcome::Forward { callee: self.callee, path: self.path, body: Body::Message(Arc::new(question)) }
    }
}

/// A call, as the called function sees it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Between functions it is always `POST`.
    pub method: Method,
    /// With the query, if there is one.
    pub path: String,
    /// The cookie of a browser.
    pub cookie: Option<String>,
    /// A message; or a form, if a browser sent it.
    pub body: Bytes,
}

/// The result of a call.
#[derive(Debug)]
pub enum Outcome {
    /// The function answers it.
    Reply(Reply),
    /// The function delegates it to another one.
    Forward {
        /// The other function.
        callee: &'static str,
        /// The path of the call to it.
        path: &'static str,
        /// The body that it gets.
        body: Body,
    },
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its fields.
    pub headers: Vec<(&'static str, String)>,
    /// Its body.
    pub body: Body,
}

impl Reply {
    /// 200, with this body.
    pub fn of(body: Body) -> Self {
        Self { status: StatusCode::OK, headers: Vec::new(), body }
    }
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        Self { status: failure.status(), ..Self::of(Body::Bytes(Bytes::from(failure.to_string()))) }
    }
}

/// The body of a response, or of a delegated call.
#[derive(Debug)]
pub enum Body {
    /// These bytes.
    Bytes(Bytes),
    /// This message.
    Message(Arc<dyn Encode>),
    /// The body of the received call.
    Same,
}

impl Body {
    /// Its bytes or message. `received` is the body of the received call.
    pub fn payload<'a>(&'a self, received: &'a Bytes) -> Payload<'a> {
        match self {
            Self::Bytes(bytes) => Payload::Bytes(bytes),
            Self::Message(message) => Payload::Message(&**message),
            Self::Same => Payload::Bytes(received),
        }
    }
}

/// The body to send. A message is encoded only when the transport sends it, directly into the
/// transport's memory.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// These bytes.
    Bytes(&'a Bytes),
    /// This message.
    Message(&'a dyn Encode),
}

impl Payload<'_> {
    /// The encoded bytes.
    pub fn to_bytes(self) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Message(message) => {
                let mut bytes = vec![0; message.length()];
                message.write(&mut bytes);
                bytes.into()
            }
        }
    }
}

/// A message of any type.
pub trait Encode: Debug + Send + Sync {
    /// Its encoded length.
    fn length(&self) -> usize;
    /// Encodes it into `into`, which has that length.
    fn write(&self, into: &mut [u8]);
}

impl<M: Message + Debug> Encode for M {
    fn length(&self) -> usize {
        self.encoded_len()
    }

    fn write(&self, mut into: &mut [u8]) {
        self.encode_raw(&mut into);
    }
}

/// Why a call fails.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The callee answered with another status than 200.
    #[error("{callee} answered with {status}")]
    Status {
        /// The called function.
        callee: &'static str,
        /// The status of its response.
        status: StatusCode,
    },
    /// The callee did not answer.
    #[error("{callee} does not answer: {cause}")]
    Unreachable {
        /// The called function.
        callee: &'static str,
        /// The error of the transport.
        cause: String,
    },
    /// A message cannot be read.
    #[error("not the message that belongs here: {0}")]
    Message(#[from] prost::DecodeError),
    /// The function has no such path.
    #[error("there is nothing here")]
    Path,
    /// The request makes no sense.
    #[error("{0}")]
    Question(&'static str),
    /// The product or other thing in the request does not exist.
    #[error("there is no {0}")]
    Missing(&'static str),
}

impl Failure {
    /// A callee without a response.
    pub fn unreachable(callee: &'static str, cause: impl Display) -> Self {
        Self::Unreachable { callee, cause: cause.to_string() }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Status { .. } | Self::Unreachable { .. } => StatusCode::BAD_GATEWAY,
            Self::Message(_) | Self::Question(_) => StatusCode::BAD_REQUEST,
            Self::Path | Self::Missing(_) => StatusCode::NOT_FOUND,
        }
    }
}
