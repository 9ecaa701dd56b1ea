//! Questions that arrive at a node, and its answers.

use super::agent::Shared;
use super::desired::from_node;
use crate::question::{Answer, Question};
use crate::wire::v1::from_node::Message;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Questions of the control plane, in the order in which they came.
pub type Questions = mpsc::Receiver<Asked>;

/// A question that awaits its answer. If it is dropped, it is declined.
#[must_use = "a question that is dropped is declined"]
#[derive(Debug)]
pub struct Asked {
    /// What is asked; `None`: it was taken.
    question: Option<Question>,
    shared: Arc<Shared>,
    /// The stream on which it came. Its number means nothing on another stream.
    stream: u64,
    id: u64,
    answered: bool,
}

impl Asked {
    pub(crate) fn new(shared: Arc<Shared>, stream: u64, id: u64) -> Self {
        Self { question: None, shared, stream, id, answered: false }
    }

    pub(crate) fn about(mut self, question: Question) -> Self {
        self.question = Some(question);
        self
    }

    /// Takes the question.
    pub fn question(&mut self) -> Option<Question> {
        self.question.take()
    }

    /// Answers it.
    pub fn answer(mut self, answer: &Answer) {
        self.give(answer);
    }

    /// Says why there is no answer.
    pub fn decline(self, reason: String) {
        self.answer(&Answer::Declined(reason));
    }

    fn give(&mut self, answer: &Answer) {
        self.answered = true;
        self.shared.send(Some(self.stream), from_node(Message::Answer(answer.to_wire(self.id))));
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.answered {
            self.give(&Answer::Declined("it was given up".to_owned()));
        }
    }
}
