//! The page at `/`: files that are part of the binary.

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

/// The paths of the page.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, &(path, kind, text)| {
        router.route(path, get(async move || file(kind, text)))
    })
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text).into_response()
}

/// Paths, types and texts. uPlot is version 1.6.32, as its authors publish it, with its licence.
const FILES: [(&str, &str, &str); 6] = [
    ("/", "text/html; charset=utf-8", include_str!("web/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("web/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("web/page.js")),
    ("/uplot.js", "text/javascript; charset=utf-8", include_str!("web/uplot.js")),
    ("/uplot.css", "text/css; charset=utf-8", include_str!("web/uplot.css")),
    ("/uplot.LICENSE", "text/plain; charset=utf-8", include_str!("web/uplot.LICENSE")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_for_files_that_are_there_and_for_no_others() {
        let index = FILES[0].2;
        let named = index.split(['"']).filter(|text| text.ends_with(".js") || text.ends_with(".css"));
        let named: Vec<_> = named.collect();
        assert_eq!(named.len(), 4, "{named:?}");
        for name in named {
            assert!(FILES.iter().any(|(path, ..)| path[1..] == *name), "{name}");
        }
        for (path, _, text) in FILES.iter().filter(|(path, ..)| !path.ends_with("LICENSE")) {
            let outside =
                text.matches("://").count() - text.matches("https://github.com/leeoniya/uPlot").count();
            assert_eq!(outside, 0, "{path}: uPlot names where it is from in a comment");
        }
    }

    #[test]
    fn the_page_takes_at_most_150_kilobytes() {
        assert!(FILES.iter().map(|(.., text)| text.len()).sum::<usize>() <= 150_000);
    }

    #[test]
    fn the_page_reads_documents_of_this_version() {
        let line = format!("const SCHEMA_VERSION = {};", crate::admin::document::SCHEMA_VERSION);
        assert!(FILES[2].2.contains(&line), "{line}");
    }

    #[test]
    fn the_page_knows_where_commands_look_for_a_gate() {
        let path = crate::admin::default_path(std::path::Path::new("/sys/fs/bpf/gate"));
        let line = format!("const DEFAULT_SOCKET = '{}';", path.display());
        assert!(FILES[2].2.contains(&line), "{line}");
    }

    #[test]
    fn the_page_writes_no_markup_of_names() {
        let script = FILES[2].2;
        for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!script.contains(forbidden), "{forbidden}");
        }
    }
}
