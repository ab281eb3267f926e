"""What happens behind `flashsim.forward`, `backward` and `count`: a step a file.

    forward("flash", Q, K, V, …)
      plan       forward_plan(…)          a `Plan`: what is asked, checked; copies of Q, K, V; a launch for each head, or group
                                          of heads; block sizes
      launch     launch_all(plan)         each launch: Q, K, V into an HBM, `algorithm.run`, and O, ℓ, m out of it; a user's own
                                          function is followed line by line, for results that are not on chip
      finish     finished(plan, …)        `run.O`: stacked over heads, refused where it overflows

A `backward` pass goes the same way, and `gather_gradients` adds up dK and dV over query heads that share a KV head. `count`
launches one problem on shapes alone, and multiplies. A user's own algorithm is run on small numbers first
(`flashsim.run.rehearsal`), and what it moves is compared with what no schedule moves less than (`flashsim.run.least`).
"""
