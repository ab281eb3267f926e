"""What happens behind `flashsim.forward`, `backward` and `count`: a step a file.

    forward("flash", Q, K, V, …)
      check      forward_task(…)          a `Task`: what is asked, checked; copies of Q, K, V
      schedule   schedule(task)           a `Plan`: heads, or groups of heads, as problems; block sizes
      launch     launch_all(plan)         each problem: Q into an HBM, `algorithm.run`, and O, ℓ, m out of it; a user's own
                                          function is followed line by line, for results that are not on chip
      gather     gather_run(plan, …)      `run.O`: stacked over heads, refused where it overflows

A `backward` pass goes the same way, and `gather` adds up dK and dV over query heads that share a KV head. `count` launches one
problem on shapes alone, and multiplies.
"""
