mod refusals;
mod replies;
mod requests;
