//! Questions to nodes, over their streams. The caller waits for the answer; a node that is away
//! gets no question later.

use leno_wire::v1::{self, to_node};
use leno_wire::{Answer, BadAnswer, BadQuestion, QUESTIONS, Question, RELEASE};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Maximum number of unanswered questions of a node.
const MAX_PENDING: usize = 32;
/// Maximum number of questions that wait to be sent to a node.
const QUEUE: usize = MAX_PENDING;

/// Why a node has not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It has no stream.
    #[error("it is not connected")]
    Away,
    /// It is of an earlier release.
    #[error("its release does not answer such questions; this control plane is of release {RELEASE}")]
    Older,
    /// It has too many questions to answer.
    #[error("it has too many questions to answer")]
    Busy,
    /// The answer did not arrive in time.
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    /// The question is too large.
    #[error(transparent)]
    Question(#[from] BadQuestion),
    /// The answer does not fit the question.
    #[error(transparent)]
    Answer(#[from] BadAnswer),
}

/// The streams on which the control plane can query nodes.
#[derive(Default)]
pub(crate) struct Questions(Mutex<BTreeMap<Arc<str>, Stream>>);

struct Stream {
    session: u64,
    protocol: u32,
    questions: mpsc::Sender<v1::ToNode>,
    next: u64,
    pending: HashMap<u64, oneshot::Sender<v1::Answer>>,
}

impl Questions {
    fn streams(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node's stream. Returns the questions to send on it.
    pub(crate) fn connect(&self, node: &Arc<str>, session: u64, protocol: u32) -> mpsc::Receiver<v1::ToNode> {
        let (questions, to_send) = mpsc::channel(QUEUE);
        let stream = Stream { session, protocol, questions, next: 1, pending: HashMap::new() };
        self.streams().insert(node.clone(), stream);
        to_send
    }

    /// Removes a node's stream. Its pending questions fail.
    pub(crate) fn disconnect(&self, node: &str, session: u64) {
        let mut streams = self.streams();
        if streams.get(node).is_some_and(|stream| stream.session == session) {
            streams.remove(node);
        }
    }

    /// Takes a node's answer. Returns whether it belongs to a question; the caller may have gone
    /// away.
    pub(crate) fn answer(&self, node: &str, session: u64, answer: v1::Answer) -> bool {
        let mut streams = self.streams();
        let Some(stream) = streams.get_mut(node).filter(|stream| stream.session == session) else { return false };
        let was_asked = (1..stream.next).contains(&answer.id);
        if let Some(asked) = stream.pending.remove(&answer.id) {
            let _ = asked.send(answer);
        }
        was_asked
    }

    /// Asks a node, and waits for its answer.
    pub(crate) async fn ask(&self, node: &str, question: &Question, timeout: Duration) -> Result<Answer, AskError> {
        let asked = self.send(node, question)?;
        let answer = tokio::time::timeout(timeout, asked.answer).await;
        let answer = answer.map_err(|_| AskError::Timeout(timeout))?.map_err(|_| AskError::Away)?;
        Ok(question.answered(answer)?)
    }

    fn send<'a>(&'a self, node: &'a str, question: &Question) -> Result<SentQuestion<'a>, AskError> {
        let mut question = question.to_wire(0)?;
        let mut streams = self.streams();
        let stream = streams.get_mut(node).ok_or(AskError::Away)?;
        if stream.protocol < QUESTIONS {
            return Err(AskError::Older);
        }
        if stream.pending.len() >= MAX_PENDING {
            return Err(AskError::Busy);
        }
        question.id = stream.next;
        let (id, session) = (stream.next, stream.session);
        let message = v1::ToNode { message: Some(to_node::Message::Question(question)) };
        stream.questions.try_send(message).map_err(|_| AskError::Busy)?;
        stream.next += 1;
        let (sender, answer) = oneshot::channel();
        stream.pending.insert(id, sender);
        drop(streams);
        Ok(SentQuestion { answer, _pending: Pending { asking: self, node, session, id } })
    }
}

/// A question that was sent.
struct SentQuestion<'a> {
    answer: oneshot::Receiver<v1::Answer>,
    _pending: Pending<'a>,
}

/// Ends the wait for an answer on drop. A later answer is dropped.
struct Pending<'a> {
    asking: &'a Questions,
    node: &'a str,
    session: u64,
    id: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut streams = self.asking.streams();
        if let Some(stream) = streams.get_mut(self.node).filter(|stream| stream.session == self.session) {
            stream.pending.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_model::OutputQuery;
    use leno_wire::v1::answer;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn question() -> Question {
        let function = "shop/checkout".parse().unwrap();
        let (instance, previous, tail, after) = (None, false, None, Vec::new());
        Question::Output(OutputQuery { function, instance, previous, attempt: None, tail, after, limit: 1 })
    }

    fn declined(id: u64) -> v1::Answer {
        v1::Answer { id, answer: Some(answer::Answer::Declined("no".to_owned())) }
    }

    fn id(message: &v1::ToNode) -> u64 {
        match &message.message {
            Some(to_node::Message::Question(question)) => question.id,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn an_answer_is_taken_once_of_the_stream_that_was_asked() {
        let (asking, question) = (Questions::default(), question());
        assert_eq!(asking.ask("one", &question, TIMEOUT).await, Err(AskError::Away));
        let _old = asking.connect(&"one".into(), 1, QUESTIONS - 1);
        assert_eq!(asking.ask("one", &question, TIMEOUT).await, Err(AskError::Older));
        let mut sent = asking.connect(&"one".into(), 2, QUESTIONS);
        let node = async {
            let id = id(&sent.recv().await.unwrap());
            assert!(!asking.answer("two", 2, declined(id)) && !asking.answer("one", 1, declined(id)));
            assert!(!asking.answer("one", 2, declined(id + 1)));
            assert!(asking.answer("one", 2, declined(id)));
        };
        let (answer, ()) = tokio::join!(asking.ask("one", &question, TIMEOUT), node);
        assert_eq!(answer, Ok(Answer::Declined("no".to_owned())));
    }

    #[tokio::test]
    async fn a_question_fails_when_its_stream_ends() {
        let (asking, question) = (Questions::default(), question());
        let mut sent = asking.connect(&"one".into(), 1, QUESTIONS);
        let node = async {
            sent.recv().await.unwrap();
            asking.disconnect("one", 7);
            asking.disconnect("one", 1);
        };
        let (answer, ()) = tokio::join!(asking.ask("one", &question, TIMEOUT), node);
        assert_eq!(answer, Err(AskError::Away));
    }

    #[tokio::test]
    async fn a_node_has_only_so_many_questions_and_none_of_those_that_have_gone_away() {
        let (asking, question) = (Questions::default(), question());
        let mut sent = asking.connect(&"one".into(), 1, QUESTIONS);
        for _ in 0..2 * MAX_PENDING {
            let asked = asking.send("one", &question).unwrap();
            let id = id(&sent.recv().await.unwrap());
            drop(asked);
            assert!(asking.answer("one", 1, declined(id)), "it comes late, and nobody waits for it");
        }
        let mut asked = Vec::new();
        for _ in 0..MAX_PENDING {
            asked.push(asking.send("one", &question).unwrap());
            sent.recv().await.unwrap();
        }
        assert_eq!(asking.send("one", &question).err(), Some(AskError::Busy));
    }

    #[tokio::test]
    async fn an_answer_beyond_the_question_is_refused() {
        let question = question();
        let line = v1::OutputLine { instance: 1, at_ms: 1, stderr: false, text: "x".repeat(20_000) };
        let output = v1::Output { lines: vec![line], ..v1::Output::default() };
        let answer = v1::Answer { id: 1, answer: Some(answer::Answer::Output(output)) };
        assert!(question.answered(answer).unwrap_err().to_string().contains("more than it was asked for"));
        let functions = vec![v1::Replayed { function: "shop/other".to_owned(), ..v1::Replayed::default() }];
        let answer = v1::Answer { id: 1, answer: Some(answer::Answer::Replays(v1::Replays { functions })) };
        assert!(question.answered(answer.clone()).unwrap_err().to_string().contains("something else"));
        let replay = Question::Replay { candidates: Vec::new(), limit: TIMEOUT };
        assert!(replay.answered(answer).unwrap_err().to_string().contains("shop/other, which nobody asked about"));
    }
}
