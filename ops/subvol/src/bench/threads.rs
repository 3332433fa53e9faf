//! Clients spread over threads.
//!
//! Each thread has a runtime of its own: a client, its connection and the library's task stay on one thread, so a reply wakes nobody
//! across threads and the bench measures the server rather than the scheduler.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::Context;

/// One client's work.
type Work<T> = Pin<Box<dyn Future<Output = anyhow::Result<T>>>>;

/// How many threads unless told: all cores serve clients if there are enough of them, but one is left for a server on this machine.
pub fn default_threads(clients: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.saturating_sub(1).clamp(1, clients.max(1))
}

/// Runs client 0 to `clients` and returns their results in order. `make` is called on the client's thread.
pub async fn spread<T: Send + 'static>(
    clients: usize,
    threads: usize,
    make: impl Fn(usize) -> Work<T> + Send + Sync + 'static,
) -> Vec<anyhow::Result<T>> {
    let make = Arc::new(make);
    let threads = threads.clamp(1, clients.max(1));
    let mut running = Vec::new();
    for thread in 0..threads {
        let make = Arc::clone(&make);
        running.push(tokio::task::spawn_blocking(move || -> anyhow::Result<Vec<anyhow::Result<T>>> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("starting a thread for clients")?;
            let works = (thread..clients).step_by(threads).map(|client| make(client));
            Ok(runtime.block_on(futures_util::future::join_all(works)))
        }));
    }
    let mut of_thread = Vec::new();
    let mut failed = Vec::new();
    for running in running {
        match running.await.map_err(anyhow::Error::new).and_then(|results| results) {
            Ok(results) => of_thread.push(results.into_iter()),
            Err(error) => failed.push(Err(error)),
        }
    }
    let mut all = Vec::with_capacity(clients);
    for client in 0..clients {
        let threads = of_thread.len().max(1);
        if let Some(result) = of_thread.get_mut(client % threads).and_then(Iterator::next) {
            all.push(result);
        }
    }
    all.extend(failed);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_come_in_the_order_of_clients() {
        let results = spread(7, 3, |client| Box::pin(async move { Ok(client) })).await;
        let results: Vec<usize> = results.into_iter().map(|result| result.expect("fine")).collect();
        assert_eq!(results, (0..7).collect::<Vec<_>>());
    }
}
