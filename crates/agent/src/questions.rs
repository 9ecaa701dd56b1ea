//! Questions from the control plane, and the node's answers.

use crate::agent_state::AgentState;
use crate::node_state::from_node;
use leno_wire::v1::from_node::Message;
use leno_wire::{Answer, Question};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Questions of the control plane, in the order of their arrival.
pub type Questions = mpsc::Receiver<PendingQuestion>;

/// A question without an answer yet. Dropping it declines it.
#[must_use = "a question that is dropped is declined"]
#[derive(Debug)]
pub struct PendingQuestion {
    /// `None`: the node has taken it.
    question: Option<Question>,
    shared: Arc<AgentState>,
    /// The stream of the question. `id` means nothing on another stream.
    stream: u64,
    id: u64,
    answered: bool,
}

impl PendingQuestion {
    pub(crate) fn new(shared: Arc<AgentState>, stream: u64, id: u64) -> Self {
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

    /// Declines the question for this reason.
    pub fn decline(self, reason: String) {
        self.answer(&Answer::Declined(reason));
    }

    fn give(&mut self, answer: &Answer) {
        self.answered = true;
        self.shared.send(Some(self.stream), from_node(Message::Answer(answer.to_wire(self.id))));
    }
}

impl Drop for PendingQuestion {
    fn drop(&mut self) {
        if !self.answered {
            self.give(&Answer::Declined("it was given up".to_owned()));
        }
    }
}
