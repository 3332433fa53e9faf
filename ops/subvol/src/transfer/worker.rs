//! One thread for short blocking calls, used in order.
//!
//! The runtime's own blocking pool would start a thread per file under way; for calls of some 20 us that costs more than it gives.

use std::sync::mpsc;

use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// The thread ends with its last owner.
#[derive(Clone, Debug)]
pub struct Worker {
    queue: mpsc::Sender<Work>,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start() -> std::io::Result<Self> {
        let (queue, works) = mpsc::channel::<Work>();
        std::thread::Builder::new()
            .name("files".into())
            .spawn(move || works.into_iter().for_each(|work| work()))?;
        Ok(Self { queue })
    }

    /// Does something there. What waits is bounded by how many callers wait.
    ///
    /// # Errors
    /// The thread is gone.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<T> {
        let (sender, receiver) = oneshot::channel();
        let work = Box::new(move || {
            // Nobody waits any more: the caller was given up.
            let _ = sender.send(work());
        });
        let gone = || std::io::Error::other("the thread for local files ended");
        self.queue.send(work).map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())?
    }
}
