# Reference values of R's survival and glmnet for the tables of tests/survival; run once, from the root of the repository:
#     apt-get install r-cran-survival r-cran-glmnet
#     Rscript benchmarks/peers/survival.R > tests/survival/references_r.json
suppressMessages({library(survival); library(glmnet)})
nums <- function(v) paste0("[", paste(ifelse(is.finite(v), sprintf("%.17g", v), "null"), collapse = ", "), "]")
mat <- function(m) paste0("[", paste(apply(as.matrix(m), 1, nums), collapse = ", "), "]")
entries <- c()
put <- function(key, value) entries <<- c(entries, sprintf("\"%s\": %s", key, value))
glmnet.control(mxitnr = 10000, epsnr = 1e-12, fdev = 0, devmax = 1)  # its Newton steps stop after 25 otherwise, far from the end
exact <- coxph.control(eps = 1e-14, iter.max = 100, toler.chol = 1e-15)
put("versions", sprintf("{\"R\": \"%s\", \"survival\": \"%s\", \"glmnet\": \"%s\"}", as.character(getRversion()),
    as.character(packageVersion("survival")), as.character(packageVersion("glmnet"))))

for (name in c("plain", "ties", "truncated", "weighted", "everything", "lonely")) {
  d <- read.csv(file.path("tests/survival/tables", paste0(name, ".csv")))
  d$cell <- interaction(d$site, d$stratum)
  entered <- any(d$entry > 0)
  y <- if (entered) Surv(d$entry, d$time, d$event) else Surv(d$time, d$event)
  for (ties in c("efron", "breslow")) {
    forms <- list(site = y ~ x1 + x2 + x3 + x4 + strata(site), cell = y ~ x1 + x2 + x3 + x4 + strata(cell) + offset(offset),
                  pooled = y ~ x1 + x2 + x3 + x4)
    for (f in names(forms)) {
      fit <- coxph(forms[[f]], data = d, weights = d$weight, ties = ties, control = exact, robust = FALSE)
      key <- paste(name, ties, f, sep = "/")
      put(paste0(key, "/coef"), nums(coef(fit)))
      put(paste0(key, "/loglik"), nums(fit$loglik))
      put(paste0(key, "/var"), mat(fit$var))
      if (f == "site") put(paste0(key, "/concordance"), nums(concordance(fit, timewt = "n")$concordance))
    }
  }
  if (name != "lonely") {  # glmnet takes no stratum without an event
  X <- scale(as.matrix(d[, c("x1", "x2", "x3", "x4")]), scale = FALSE)  # centred: its coordinate descent is slow otherwise
  ys <- stratifySurv(y, d$site)
  grid <- 0.15 * 0.6^(0:7)
  for (mix in c(1, 0.5)) for (standard in c(FALSE, TRUE)) {
    fit <- glmnet(X, ys, family = "cox", alpha = mix, lambda = grid, weights = d$weight, standardize = standard,
                  thresh = 1e-14, maxit = 1e7)
    put(paste(name, "glmnet", mix, standard, sep = "/"), mat(t(as.matrix(coef(fit)))))
  }
  factors <- c(1, 0, 2, 1)  # glmnet rescales them to sum to 4, as they do
  fit <- glmnet(X, ys, family = "cox", alpha = 1, lambda = grid, weights = d$weight, standardize = TRUE, penalty.factor = factors,
                lower.limits = c(-Inf, -Inf, -Inf, -0.1), thresh = 1e-14, maxit = 1e7)
  put(paste(name, "glmnet/factors", sep = "/"), mat(t(as.matrix(coef(fit)))))
  if (name %in% c("plain", "ties")) {  # glmnet's cross-validation, of one stratum
    cv <- cv.glmnet(X, y, family = "cox", lambda = grid, foldid = d$fold + 1, grouped = TRUE, standardize = FALSE, thresh = 1e-14,
                    maxit = 1e7)
    put(paste(name, "glmnet/cv", sep = "/"), nums(cv$cvm))
  }
  }
  km <- survfit(update(y ~ x4, . ~ .), data = d, weights = d$weight, conf.type = "log-log")
  for (g in 0:1) {
    s <- summary(km[g + 1], times = c(5, 10, 20, 40), extend = TRUE)
    put(paste(name, "km", g, sep = "/"), mat(rbind(s$surv, s$std.err, s$lower, s$upper, s$n.risk)))
  }
  if (!entered) {
    test <- survdiff(Surv(time, event) ~ x4 + strata(site), data = d)
    put(paste(name, "logrank/site", sep = "/"), nums(test$chisq))
    test <- survdiff(Surv(time, event) ~ x4, data = d)
    put(paste(name, "logrank/pooled", sep = "/"), nums(test$chisq))
  }
}
cat("{\n", paste(entries, collapse = ",\n"), "\n}\n", sep = "")
